// Several runs in one chart: those that differ in their seed alone become a mean and a band.

import { get, isAbort, runPath, withQuery } from "../api.js";
import { Chart } from "../charts.js";
import { showConnection } from "../connection.js";
import { emptyState, fill, h } from "../dom.js";
import { count, naturalOrder, number } from "../format.js";
import { setMasthead } from "../masthead.js";
import { colourClass, dashOf } from "../palette.js";
import { runAddress } from "../router.js";
import { isAlive, learnerNames, stateBadge } from "../run_state.js";

const REFRESH_MILLISECONDS = 15_000;
const EVALUATED = ""; // the metric of nobody's choice: evaluated returns

export async function show(root, { query, signal }) {
  setMasthead("Compare", [["Runs", "/"], ["Compare", null]]);
  const runs = query.getAll("runs");
  if (!runs.length) {
    fill(
      root,
      h("h1", {}, "Compare"),
      emptyState("No runs chosen. Tick some in the list of runs, then press Compare."),
    );
    return;
  }
  const metric = h(
    "select",
    { id: "metric", dataset: { testid: "metric" } },
    h("option", { value: EVALUATED }, "evaluated return"),
  );
  const warning = h("p", { class: "sentence", hidden: true });
  const groups = h("div", { class: "groups" });
  const chart = new Chart({
    key: "compare",
    title: "Mean and band of each group",
    logSwitch: true,
    empty: "None of these runs has this metric yet.",
    signal,
  });
  chart.element.classList.add("tall");
  fill(
    root,
    h(
      "div",
      { class: "page-head" },
      h("h1", {}, "Compare"),
      h("p", { class: "note" }, count(runs.length, "run")),
    ),
    h("div", { class: "toolbar" }, h("label", { for: "metric" }, "Metric"), metric),
    warning,
    chart.element,
    groups,
  );

  const wanted = query.get("metric") ?? EVALUATED;
  if (wanted !== EVALUATED) metric.append(h("option", { value: wanted }, wanted));
  metric.value = wanted;
  offerMetrics(metric, runs, signal);

  let alive = true;
  const refresh = async () => {
    try {
      const [comparison, list] = await Promise.all([
        get("/api/compare", { runs, metric: metric.value || null }, signal),
        get("/api/runs", {}, signal),
      ]);
      const summaries = new Map(list.runs.map((run) => [run.id, run]));
      chart.setTraces(
        comparison.bands.map(
          (band, place) => ({ label: band.label, place, x: band.x, y: band.mean, low: band.low, high: band.high }),
        ),
        "environment steps",
      );
      fill(groups, comparison.bands.map((band, place) => groupCard(band, place, summaries)));
      const environments = new Set(runs.map((run) => summaries.get(run)?.env).filter(Boolean));
      warning.hidden = environments.size < 2;
      const named = [...environments].join(", ");
      warning.textContent = `These runs are on different environments (${named}): returns cannot be compared.`;
      alive = runs.some((run) => isAlive(summaries.get(run)?.state));
      showConnection("polling");
    } catch (error) {
      if (isAbort(error)) return;
      chart.fail(error.message);
      showConnection(error.status === 0 ? "lost" : "polling");
    }
  };
  metric.addEventListener("change", () => {
    history.replaceState(null, "", withQuery("/compare", { runs, metric: metric.value || null }));
    refresh();
  });
  const timer = setInterval(() => alive && !document.hidden && refresh(), REFRESH_MILLISECONDS);
  signal.addEventListener("abort", () => clearInterval(timer));
  refresh();
}

/** What any of the runs has. One that cannot be read has its reason shown by the comparison itself. */
async function offerMetrics(select, runs, signal) {
  const answers = await Promise.all(
    runs.map((run) => get(runPath(run, "metrics"), {}, signal).catch(() => ({ names: [] }))),
  );
  const names = [...new Set(answers.flatMap((answer) => answer.names))].sort(naturalOrder);
  const chosen = select.value;
  for (const name of names) if (name !== chosen) select.append(h("option", { value: name }, name));
}

function groupCard(band, place, summaries) {
  const interval = band.runs.length > 1 ? ` (${number(band.low.at(-1))} to ${number(band.high.at(-1))})` : "";
  const newest = band.mean.length ? number(band.mean.at(-1)) + interval : "nothing yet";
  return h(
    "section",
    { class: "card", dataset: { testid: "group" } },
    h(
      "h2",
      {},
      h("span", { class: `swatch ${colourClass(place)} ${dashOf(place)}`, "aria-hidden": "true" }),
      h("span", { class: "clip", title: band.label }, band.label),
    ),
    h("p", { class: "note" }, `${count(band.runs.length, "run")}; newest: ${newest}`),
    h(
      "ul",
      { class: "plain-list" },
      band.runs.map((id) => {
        const run = summaries.get(id);
        return h(
          "li",
          {},
          run ? stateBadge(run.state) : null,
          h("a", { href: runAddress(id), class: "clip", title: id }, id),
          run ? h(
            "span",
            { class: "note clip" },
            `${learnerNames(run.learners)} on ${run.env}, seed ${run.seed}`,
          ) : null,
        );
      }),
    ),
  );
}
