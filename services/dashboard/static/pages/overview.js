// How a run fares: what holds it back, the numbers that matter, returns and speed over time, videos, events.

import { get, runPath } from "../api.js";
import { fill, h, keyed, setAttribute, setText } from "../dom.js";
import { EventList } from "../event_list.js";
import { tile } from "../facts.js";
import { UNKNOWN, count, decimal, duration, integer, number, percent, rate } from "../format.js";
import { runAddress } from "../router.js";
import { isAlive } from "../run_state.js";
import { Videos } from "../videos.js";

export const title = "Overview";
export const parts = ["rows", "events"];

const EVENTS_SHOWN = 8;
const NO_RETURN_YET =
  "No return yet: it comes with the first episodes that end; evaluations begin with the untrained policy.";
const NOT_KNOWN_YET = {
  level: "notice",
  text: "Not known yet what holds the run back: it has only begun.",
  remedy: null,
};
const RATIO_TOLERANCE = 0.05; // beyond it a ratio is marked

export async function show(panel, context) {
  const holdups = h("ul", {
    class: "holdups",
    dataset: { testid: "holdups" },
    "aria-label": "What holds the run back",
  });
  const tiles = makeTiles();
  const videos = new Videos(context.run);
  const videoSection = h("section", { class: "card" }, h("h2", {}, "Newest videos"), videos.element);
  const events = new EventList({ limit: EVENTS_SHOWN });

  fill(
    panel,
    holdups,
    tiles.element,
    h("div", { class: "section-head" }, h("h2", {}, "Over time"), context.feed.axisSwitch()),
    charts(context),
    h(
      "div",
      { class: "two-columns" },
      h(
        "section",
        { class: "card" },
        h(
          "div",
          { class: "section-head" },
          h("h2", {}, "Last events"),
          h("a", { href: runAddress(context.run, "system") }, "All events"),
        ),
        events.element,
      ),
      videoSection,
    ),
  );
  context.watch("overview", (overview) => {
    showHoldups(holdups, overview);
    tiles.set(overview);
    videoSection.hidden = overview.videos.length === 0;
    videos.update(overview.videos);
  });
  const fetchEvents = async () =>
    events.add((await get(runPath(context.run, "events"), { limit: EVENTS_SHOWN }, context.signal)).events);
  context.on("events", (news) => events.add(news.events));
  context.onOpen(() => fetchEvents().catch(() => {}));
  await fetchEvents();
}

const SIGNS = { fine: "✓", notice: "i", warning: "!" };

function showHoldups(list, { holdups, run }) {
  const shown = holdups.length || !isAlive(run.state) ? holdups : [NOT_KNOWN_YET];
  list.hidden = shown.length === 0;
  keyed(
    list,
    shown,
    (_holdup, index) => index,
    () => h(
      "li",
      {},
      h("span", { class: "sign", "aria-hidden": "true" }),
      h("div", {}, h("strong", {}), h("span", { class: "remedy" })),
    ),
    (line, holdup) => {
      setAttribute(line, "data-level", holdup.level);
      setText(line.firstChild, SIGNS[holdup.level]);
      setText(line.lastChild.firstChild, holdup.text);
      setText(line.lastChild.lastChild, holdup.remedy ?? "");
    },
  );
}

function makeTiles() {
  const returns = tile("Return", {
    testid: "return",
    title: "Mean of the last training episodes, exploration included",
  });
  const evaluation = tile("Evaluation", {
    testid: "evaluation",
    title: "Mean of the newest evaluation, without exploration",
  });
  const steps = tile("Acting", { testid: "steps-per-second" });
  const updates = tile("Learning", { testid: "updates-per-second" });
  const lag = tile("Policy lag", {
    testid: "lag",
    title: "How far the weights of the worst actor are behind its learner",
  });
  const faults = tile("Faults", {
    testid: "faults",
    title: "Restarts, skipped updates, broken episodes, failed checkpoints",
  });
  const ratios = h("ul", { class: "ratios" });
  const ratioTile = h(
    "div",
    { class: "tile", dataset: { testid: "ratios" } },
    h("span", { class: "tile-label" }, "Updates per step"),
    ratios,
  );
  return {
    element: h(
      "div",
      { class: "tiles" },
      returns.element,
      evaluation.element,
      steps.element,
      updates.element,
      ratioTile,
      lag.element,
      faults.element,
    ),
    set(overview) {
      const { run } = overview;
      const alive = isAlive(run.state);
      returns.set(number(run.mean_return), {
        note: overview.episodes === null ? "in training, of late" : count(overview.episodes, "episode"),
      });
      const none = alive ? "none yet" : "none";
      evaluation.set(number(run.evaluation), {
        note: run.best_evaluation === null ? none : `best ${number(run.best_evaluation)}`,
      });
      steps.set(rate(overview.steps_per_second, "steps"), { note: actorWords(overview), hasUnit: true });
      if (alive) {
        const made = `${integer(overview.updates)} made`;
        updates.set(rate(overview.updates_per_second, "updates"), { note: made, hasUnit: true });
      } else updates.set(`${integer(overview.updates)} updates`, { hasUnit: true });
      lag.element.hidden = overview.version_lag === null && !(alive && run.distributed);
      lag.set(overview.version_lag === null ? UNKNOWN : `${decimal(overview.version_lag, 1)} versions`, {
        note: overview.lag_seconds === null ? "" : `${duration(overview.lag_seconds)} old at worst`,
        hasUnit: true,
      });
      faults.set(integer(overview.faults), {
        note: overview.faults ? `${integer(overview.restarts)} of them restarts` : none,
        level: overview.faults ? "warning" : null,
      });
      ratioTile.hidden = overview.ratios.length === 0;
      showRatios(ratios, overview.ratios);
    },
  };
}

function actorWords({ actors, wanted_actors: wanted, run }) {
  if (!run.distributed) return "in one process";
  if (actors === null || !isAlive(run.state)) return run.env_steps ? "on average" : "";
  return wanted === null || wanted === actors
    ? count(actors, "actor")
    : `${integer(actors)} of ${count(wanted, "actor")}`;
}

function showRatios(list, ratios) {
  keyed(
    list,
    ratios,
    (ratio) => ratio.learner,
    (ratio) => h(
      "li",
      {},
      h("span", { class: "clip", title: ratio.learner }, ratio.learner),
      h("strong", {}),
      h("span", { class: "note" }),
      h("span", { class: "mark" }),
    ),
    (line, ratio) => {
      const [, measured, target, mark] = line.children;
      const off = ratio.measured === null || !ratio.target ? 0 : ratio.measured / ratio.target - 1;
      const isOff = Math.abs(off) > RATIO_TOLERANCE;
      setText(measured, number(ratio.measured));
      setText(target, `of ${number(ratio.target)}`);
      setText(mark, isOff ? `! ${off > 0 ? "+" : ""}${percent(off)}` : "");
      setAttribute(mark, "title", isOff ? "More than 5 % off what the settings ask for" : null);
    },
  );
}

function charts({ feed, learners, placeOf, overview }) {
  const portfolio = learners.length > 1;
  const ended = !isAlive(overview().run.state);
  const nothing = ended ? "This run has recorded none." : "Nothing yet: the first row of metrics comes soon.";
  const all = [
    feed.chart({
      key: "return",
      title: "Return",
      note: "training, and evaluations with their deviation",
      empty: ended ? "This run has recorded no returns." : NO_RETURN_YET,
      lines: [{
        metric: "rollout/ep_rew_mean",
        label: portfolio ? "training, all" : "training",
        place: "neutral",
        thin: true,
      }],
      evaluations: (learner) => {
        if (!portfolio) return { label: "evaluation", place: 0 };
        if (learner) return { label: learner, place: placeOf(learner) };
        return { label: "whoever led", place: "neutral", dash: "dot", plain: true };
      },
    }),
    feed.chart({
      key: "throughput",
      title: "Speed",
      note: "per second",
      empty: nothing,
      lines: [
        { metric: "time/fps", label: "steps", place: 0 },
        { metric: "time/updates_per_second", label: "updates", place: 1 },
      ],
    }),
    feed.chart({
      key: "lag",
      title: "Policy lag",
      note: "of the worst actor",
      empty: nothing,
      lines: [{ metric: "actors/version_lag", label: "versions", place: 2 }],
    }),
    feed.chart({
      key: "lag-seconds",
      title: "Age of weights",
      note: "of the worst actor",
      empty: nothing,
      lines: [{ metric: "actors/weights_lag_seconds", label: "seconds", place: 3 }],
    }),
  ];
  all[0].element.classList.add("wide", "tall");
  return h("div", { class: "charts three" }, all.map((chart) => chart.element));
}
