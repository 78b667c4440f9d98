// What all pages of a run share: its title, state, progress, tabs and controls, and the stream that feeds
// the page below them. The frame stays while one moves between the tabs of a run.

import { ApiError, get, isAbort, runPath } from "./api.js";
import { serverNow } from "./clock.js";
import { showConnection } from "./connection.js";
import { askSimple, controlButton } from "./controls.js";
import { announce, emptyState, fill, h, setAttribute, setText } from "./dom.js";
import { duration, integer, percent } from "./format.js";
import { setMasthead } from "./masthead.js";
import { openLive } from "./live.js";
import { runAddress } from "./router.js";
import { isAlive, runTitle, setStateBadge, stateBadge, stateSentence } from "./run_state.js";
import { SeriesFeed } from "./series.js";

const RETRY_MILLISECONDS = 5000;

export class RunFrame {
  /** pages: { name: { title, parts, show(panel, context) } } in the order of the tabs. */
  constructor(run, pages, root) {
    this.run = run;
    this._pages = pages;
    this._root = root;
    this._overview = null;
    this._life = new AbortController(); // of the frame
    this._page = null; // AbortController of the page that is shown
    this._connection = "connecting";
    this._build();
    const clock = setInterval(() => this._showSentence(), 1000);
    this._life.signal.addEventListener("abort", () => clearInterval(clock));
  }

  async show(name) {
    this._page?.abort();
    this._page = new AbortController();
    const { signal } = this._page;
    const page = this._pages[name];
    for (const [tab, link] of this._tabs) setAttribute(link, "aria-current", tab === name ? "page" : null);
    fill(this._panel, emptyState("Loading…"));
    this._pageTitle = page?.title ?? "Not found";
    setMasthead(this._pageTitle, [["Runs", "/"], [this.run, null]]);
    try {
      this._showOverview(await get(runPath(this.run), {}, signal));
    } catch (error) {
      if (isAbort(error)) return;
      showConnection("none");
      const isUnknown = error instanceof ApiError && error.status === 404;
      const place = this._overview ? this._panel : this._root;
      fill(place, emptyState(isUnknown ? "There is no run of this name." : error.message));
      if (!isUnknown) setTimeout(() => !signal.aborted && this.show(name), RETRY_MILLISECONDS);
      return;
    }
    if (page) {
      this._tabs.get(name).scrollIntoView({ block: "nearest", inline: "nearest" });
      this._open(page, signal);
    } else fill(this._panel, emptyState("There is no such page. The tabs above are all there are."));
  }

  close() {
    this._page?.abort();
    this._life.abort();
  }

  /** Fills the panel, and connects it to the stream. */
  _open(page, signal) {
    const listeners = new Map(); // part -> callbacks
    const gapListeners = [];
    const openListeners = [];
    const on = (part, callback) => listeners.set(part, [...(listeners.get(part) ?? []), callback]);
    const feed = new SeriesFeed(this.run, signal);
    on("overview", (overview) => this._showOverview(overview));
    on("rows", (rows) => feed.receive(rows));
    const learners = Object.keys(this._overview.run.learners);
    const context = {
      run: this.run,
      signal,
      feed,
      on,
      /** The stream is there: what it brings begins now, so what came before is to be fetched. */
      onOpen: (callback) => openListeners.push(callback),
      /** Fetches one part now and hands it, and whatever the stream brings of it later, to the callback. */
      watch: (part, callback) => {
        const path = part === "overview" ? runPath(this.run) : runPath(this.run, part);
        const fetchNow = () => get(path, {}, signal).then(callback);
        on(part, callback);
        gapListeners.push(() => fetchNow().catch(() => {}));
        return part === "overview" ? callback(this._overview) : fetchNow();
      },
      overview: () => this._overview,
      learners,
      /** The same learner has the same colour on every page. */
      placeOf: (learner) => (learners.includes(learner) ? learners.indexOf(learner) : "neutral"),
    };
    fill(this._panel);
    Promise.resolve(page.show(this._panel, context)).catch((error) => {
      if (!isAbort(error)) fill(this._panel, emptyState(error.message));
    });
    openLive(this.run, ["overview", ...page.parts], {
      signal,
      on: (part, data) => listeners.get(part)?.forEach((callback) => callback(data)),
      onConnection: (state) => this._showConnection(state),
      onOpen: (missed) => {
        openListeners.forEach((callback) => callback());
        if (!missed) return;
        feed.refresh();
        gapListeners.forEach((fetchAgain) => fetchAgain());
      },
    });
  }

  _build() {
    this._title = h("h1", {}, this.run);
    this._badge = stateBadge("lost");
    this._identity = h("span", { class: "note identity" });
    this._steps = h("span", { dataset: { testid: "env-steps" } }, "–");
    this._ofTotal = h("span", {});
    this._times = h("span", { class: "note times" });
    this._progress = h("progress", { max: "1", value: "0", "aria-label": "Progress" });
    this._sentence = h("p", { class: "sentence", role: "status", hidden: true });
    this._controls = h("div", { class: "controls" });
    this._tabs = new Map(
      Object.entries(this._pages).map(([name, page]) => [
        name,
        h("a", { href: runAddress(this.run, name), dataset: { testid: `tab-${name}` } }, page.title),
      ]),
    );
    this._panel = h("div", { class: "panel" });
    this._head = [
      h(
        "section",
        { class: "run-head", "aria-label": "The run" },
        h("div", { class: "run-title" }, this._title, this._badge, this._identity),
        this._controls,
        h(
          "div",
          { class: "run-progress" },
          h("span", { class: "steps" }, this._steps, this._ofTotal),
          this._progress,
          this._times,
        ),
        this._sentence,
      ),
      h("nav", { class: "tabs", "aria-label": "Pages of this run" }, [...this._tabs.values()]),
    ];
    fill(this._root, emptyState("Loading…")); // the frame comes with what it says, so that nothing moves
  }

  _showOverview(overview) {
    const { run } = overview;
    const before = this._overview?.run.state;
    if (!this._overview) fill(this._root, this._head, this._panel);
    this._overview = overview;
    if (before && before !== run.state) announce(`The run is now ${run.state}.`);
    setText(this._title, runTitle(run));
    setAttribute(this._title, "title", runTitle(run));
    setStateBadge(this._badge, run.state);
    setText(
      this._identity,
      `${run.id} · seed ${run.seed} · ${run.distributed ? "distributed" : "one process"}`,
    );
    setText(this._steps, integer(run.env_steps));
    setText(this._ofTotal, ` of ${integer(run.total_steps)} steps`);
    const share = run.total_steps > 0 ? run.env_steps / run.total_steps : 0;
    this._progress.value = Math.min(1, share);
    setText(this._times, [percent(Math.floor(share * 1000) / 1000, 1), ...timeWords(overview)].join(" · "));
    this._tabs.get("director")?.toggleAttribute("hidden", Object.keys(run.learners).length < 2);
    document.title = `${this._pageTitle} · ${runTitle(run)} · Repertory`;
    this._showSentence();
    this._showControls(run);
    this._showConnection(this._connection);
  }

  _showSentence() {
    if (!this._overview) return;
    const sentence = stateSentence(this._overview.run, serverNow());
    this._sentence.hidden = sentence === null;
    setText(this._sentence, sentence ?? "");
    setAttribute(this._sentence, "data-state", this._overview.run.state);
  }

  _showConnection(state) {
    this._connection = state;
    const runState = this._overview?.run.state;
    const words = !runState || isAlive(runState) ? "live" : runState === "lost" ? "connected" : "record";
    showConnection(state === "live" ? words : state);
  }

  /** Made anew only when they change: a button that is pressed must not go away meanwhile. */
  _showControls(run) {
    const shape = `${run.steerable} ${run.state}`;
    if (shape === this._controlsShape) return;
    this._controlsShape = shape;
    if (!run.steerable) {
      fill(this._controls, h("p", { class: "note" }, "No controls: ", whyNoControls(run)));
      if (isAlive(run.state) && run.distributed) this._askWhetherReadOnly(shape);
      return;
    }
    const hold = run.state === "paused" ? "resume" : "pause";
    fill(
      this._controls,
      controlButton({
        testid: hold,
        label: hold === "pause" ? "Pause" : "Resume",
        onclick: () => askSimple(this.run, hold),
      }),
      controlButton({
        testid: "checkpoint",
        label: "Checkpoint now",
        onclick: () => askSimple(this.run, "checkpoint"),
      }),
      controlButton({
        testid: "stop",
        label: "Stop",
        danger: true,
        onclick: () => askSimple(this.run, "stop"),
      }),
    );
  }

  async _askWhetherReadOnly(shape) {
    const answer = await get("/api/runs", {}, this._life.signal).catch(() => null);
    if (!answer?.read_only || shape !== this._controlsShape) return;
    fill(this._controls, h("p", { class: "note" }, "No controls: this dashboard is read-only."));
  }
}

function whyNoControls(run) {
  if (run.state === "lost") return "nothing is heard of the run.";
  if (!isAlive(run.state)) return "the run has ended.";
  if (!run.distributed) return "a run in one process is steered from its terminal (Ctrl-C stops it).";
  return "its control server does not answer, or this dashboard is read-only.";
}

function timeWords({ run, elapsed_seconds: elapsed, remaining_seconds: remaining }) {
  const words = [];
  if (elapsed !== null) words.push(`${duration(elapsed)}${isAlive(run.state) ? " so far" : ""}`);
  if (run.state === "running" && remaining !== null) words.push(`about ${roughly(remaining)} left`);
  return words;
}

/** An estimate has no seconds beyond a few minutes. */
function roughly(seconds) {
  return seconds > 300 && seconds < 3600 ? `${Math.round(seconds / 60)} min` : duration(seconds);
}
