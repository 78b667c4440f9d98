// The list of runs: sorted, filtered, and the way to comparing some of them.

import { get, isAbort, withQuery } from "../api.js";
import { setTimeAgo, timeAgo } from "../clock.js";
import { showConnection } from "../connection.js";
import { DataTable } from "../data_table.js";
import { emptyState, fill, h, setAttribute, setText } from "../dom.js";
import { count, integer, number } from "../format.js";
import { setMasthead } from "../masthead.js";
import { shareBar } from "../meter.js";
import { runAddress } from "../router.js";
import { STATES, learnerNames, setStateBadge, stateBadge } from "../run_state.js";

const NO_RUNS = "No runs here yet. Start one: repertory train Pendulum-v1 --algo td3";
const REFRESH_MILLISECONDS = 5000;

export function show(root, { query, signal, go }) {
  setMasthead("Runs", [["Runs", null]]);
  const chosen = new Set();
  let all = null;

  const compareButton = h("button", {
    type: "button",
    class: "primary",
    dataset: { testid: "compare" },
    onclick: () => go(withQuery("/compare", { runs: [...chosen] })),
  });
  const showChoice = () => {
    setText(compareButton, chosen.size ? `Compare ${count(chosen.size, "run")}` : "Compare");
    compareButton.disabled = chosen.size === 0;
    compareButton.title = chosen.size ? "" : "Tick the runs to compare";
  };
  const table = new DataTable({
    caption: "Runs",
    columns: columns(chosen, showChoice),
    keyOf: (run) => run.id,
    rowProperties: (run) => ({ dataset: { testid: "run-row", run: run.id } }),
    sort: ["age", true],
    cards: true,
  });
  const text = h("input", {
    type: "search",
    placeholder: "Filter by name, algorithm, environment",
    "aria-label": "Filter runs",
    value: query.get("q") ?? "",
    dataset: { testid: "filter" },
  });
  const state = h(
    "select",
    { "aria-label": "State", dataset: { testid: "filter-state" } },
    h("option", { value: "" }, "any state"),
    STATES.map((name) => h("option", { value: name }, name)),
  );
  state.value = query.get("state") ?? "";
  const summary = h("p", { class: "note", role: "status" });
  const list = h("div", {}, emptyState("Loading…"));

  const showRuns = () => {
    if (all === null) return;
    const needle = text.value.trim().toLowerCase();
    const shown = all.filter(
      (run) => (!state.value || run.state === state.value) && searchable(run).includes(needle),
    );
    const running = all.filter((run) => run.state === "running").length;
    setText(
      summary,
      shown.length === all.length
        ? `${count(all.length, "run")}, ${integer(running)} running`
        : `${integer(shown.length)} of ${count(all.length, "run")}`,
    );
    if (!all.length) fill(list, emptyState(NO_RUNS));
    else if (!shown.length) fill(list, emptyState("No run is like that. Change the filter to see others."));
    else if (list.firstChild !== table.element) fill(list, table.element);
    table.update(shown);
  };
  const filterChanged = () => {
    history.replaceState(null, "", withQuery("/", { q: text.value || null, state: state.value || null }));
    showRuns();
  };
  text.addEventListener("input", filterChanged);
  state.addEventListener("change", filterChanged);

  const refresh = async () => {
    if (document.hidden) return;
    try {
      const answer = await get("/api/runs", {}, signal);
      all = answer.runs;
      for (const id of chosen) if (!all.some((run) => run.id === id)) chosen.delete(id);
      showConnection("polling");
      showChoice();
      showRuns();
    } catch (error) {
      if (isAbort(error)) return;
      showConnection("lost");
      if (all === null) fill(list, emptyState(error.message));
    }
  };
  const timer = setInterval(refresh, REFRESH_MILLISECONDS);
  signal.addEventListener("abort", () => clearInterval(timer));
  document.addEventListener("visibilitychange", refresh, { signal });

  fill(
    root,
    h("div", { class: "page-head" }, h("h1", {}, "Runs"), summary),
    h("div", { class: "toolbar" }, text, state, compareButton),
    list,
  );
  showChoice();
  refresh();
}

function columns(chosen, onChoice) {
  return [
    {
      key: "choose",
      label: "Compare",
      unseen: true,
      bare: true,
      make: (run) =>
        h("input", {
          type: "checkbox",
          "aria-label": `Choose ${run.id} to compare`,
          onchange: (event) => {
            if (event.target.checked) chosen.add(run.id);
            else chosen.delete(run.id);
            onChoice();
          },
          dataset: { testid: "choose" },
        }),
      update: (cell, run) => (cell.firstChild.checked = chosen.has(run.id)),
    },
    {
      key: "state",
      label: "State",
      bare: true,
      value: (run) => run.state,
      make: (run) => stateBadge(run.state),
      update: (cell, run) => setStateBadge(cell.firstChild, run.state),
    },
    {
      key: "run",
      label: "Run",
      wide: true,
      bare: true,
      value: (run) => run.id,
      make: (run) => [
        h("a", { href: runAddress(run.id), class: "run-name", title: run.id }, run.id),
        h("span", { class: "note" }, ` seed ${run.seed}`),
      ],
    },
    {
      key: "algorithms",
      label: "Algorithms",
      value: (run) => learnerNames(run.learners),
      update: (cell, run) => showClipped(cell, learnerNames(run.learners)),
    },
    {
      key: "env",
      label: "Environment",
      value: (run) => run.env,
      update: (cell, run) => showClipped(cell, run.env),
    },
    {
      key: "steps",
      label: "Steps",
      numeric: true,
      value: (run) => run.env_steps,
      make: makeSteps,
      update: (cell, run) => cell.firstChild.set(run),
    },
    {
      key: "return",
      label: "Return",
      title: "Mean of the last training episodes, exploration included",
      numeric: true,
      value: (run) => run.mean_return,
      text: (run) => number(run.mean_return),
    },
    {
      key: "best",
      label: "Best evaluation",
      title: "Mean return of the best evaluation, without exploration",
      numeric: true,
      value: (run) => run.best_evaluation,
      text: (run) => number(run.best_evaluation),
    },
    {
      key: "age",
      label: "Started",
      numeric: true,
      value: (run) => run.started_at,
      make: (run) => timeAgo(run.started_at),
      update: (cell, run) => setTimeAgo(cell.firstChild, run.started_at),
    },
  ];
}

function makeSteps(run) {
  const bar = shareBar("Steps");
  bar.element.set = ({ env_steps, total_steps }) => bar.set(
    total_steps ? env_steps / total_steps : 0,
    `${integer(env_steps)} of ${integer(total_steps)}`,
  );
  bar.element.set(run);
  return bar.element;
}

function showClipped(cell, text) {
  if (!cell.firstChild) cell.append(h("span", { class: "clip" }));
  setText(cell.firstChild, text);
  setAttribute(cell.firstChild, "title", text);
}

function searchable(run) {
  return [run.id, run.env, learnerNames(run.learners), run.group].join(" ").toLowerCase();
}
