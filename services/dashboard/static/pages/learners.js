// The learners of a run: a card each, and charts in which they lie over each other.

import { emptyState, fill, h, keyed, setAttribute, setText } from "../dom.js";
import { facts } from "../facts.js";
import { ago, bytes, duration, integer, number, percent, rate } from "../format.js";
import { groupMetrics, titleOf } from "../learner_metrics.js";
import { shareBar } from "../meter.js";
import { colourClass } from "../palette.js";

export const title = "Learners";
export const parts = ["rows", "learners"];

const SILENCE_SECONDS = 15;
const CLOSED_AT_FIRST = new Set(["Other"]);

export function show(panel, context) {
  const cards = h("div", { class: "cards-grid" });
  const sections = h("div", {});
  const nothing = emptyState("Loading…");
  const updateCharts = chartSections(sections, context);
  fill(
    panel,
    nothing,
    cards,
    h("div", { class: "section-head" }, h("h2", {}, "Over time"), context.feed.axisSwitch()),
    sections,
  );

  return context.watch("learners", ({ learners }) => {
    nothing.hidden = learners.length > 0;
    setText(nothing, "No learner has been heard of yet.");
    keyed(
      cards,
      learners,
      (learner) => learner.name,
      (learner) => makeCard(learner, context),
      (card, learner) => card.show(learner),
    );
    updateCharts(learners);
  });
}

function makeCard(learner, { placeOf }) {
  const waiting = shareBar("Time spent waiting for data");
  const list = facts([
    "Updates",
    "Speed",
    "One update",
    "Version",
    "Staleness of data",
    "Skipped updates",
    "Memory",
    "Device",
  ]);
  const heard = h("span", { class: "note" });
  const card = h(
    "section",
    { class: "card learner-card", dataset: { testid: "learner-card", name: learner.name } },
    h(
      "div",
      { class: "section-head" },
      h(
        "h2",
        {},
        h("span", { class: `swatch block ${colourClass(placeOf(learner.name))}`, "aria-hidden": "true" }),
        h("span", { class: "clip", title: learner.name }, learner.name),
        learner.algorithm === learner.name ? null : h("span", { class: "note" }, learner.algorithm),
      ),
      heard,
    ),
    h("div", { class: "labelled" }, h("span", { class: "note" }, "Waiting for data"), waiting.element),
    list.element,
  );
  card.show = (now) => {
    waiting.set(
      now.waiting_share,
      now.waiting_share === null ? "not known" : `${percent(now.waiting_share)} of its time`,
    );
    list.set([
      integer(now.updates),
      rate(now.updates_per_second, "updates"),
      duration(now.update_seconds),
      integer(now.version),
      now.staleness_versions === null ? "–" : `${number(now.staleness_versions)} versions`,
      integer(now.skipped),
      bytes(now.memory_bytes),
      now.device ?? "–",
    ]);
    const silent = now.heard_seconds !== null && now.heard_seconds > SILENCE_SECONDS;
    setText(
      heard,
      now.heard_seconds === null
        ? "not running"
        : silent
        ? `Not heard for ${duration(now.heard_seconds)}`
        : `heard ${ago(now.heard_seconds)}`,
    );
    setAttribute(heard, "data-level", silent ? "warning" : null);
  };
  return card;
}

/** Charts are added as metrics appear; those that are there stay. */
function chartSections(root, { feed, placeOf }) {
  const charts = new Map(); // kind -> chart
  const grids = new Map(); // group -> element
  let known = "";
  return (learners) => {
    const now = learners.flatMap((learner) => learner.metrics).join("\n");
    if (now === known) return;
    known = now;
    const groups = groupMetrics(learners);
    if (!groups.length) fill(root, emptyState("No metrics of learners yet: they come with the first updates."));
    else if (!grids.size) fill(root);
    for (const { group, kinds } of groups) {
      if (!grids.has(group)) {
        const grid = h("div", { class: "charts three" });
        grids.set(group, grid);
        root.append(
          h(
            "details",
            { class: "chart-group", open: !CLOSED_AT_FIRST.has(group) },
            h("summary", {}, h("h3", {}, group)),
            grid,
          ),
        );
      }
      for (const { kind, isShare, isLoss, isWhole, lines } of kinds) {
        const drawn = lines.map(({ metric, learner, option }) => (
          option
            ? { metric, label: `option ${option}`, place: option - 1 }
            : { metric, label: learner, place: placeOf(learner) }
        ));
        if (charts.has(kind)) charts.get(kind).setLines(drawn);
        else {
          const chart = feed.chart({
            key: kind,
            title: titleOf(kind),
            percent: isShare,
            stacked: isWhole,
            logSwitch: isLoss,
            lines: drawn,
          });
          charts.set(kind, chart);
          grids.get(group).append(chart.element);
        }
      }
    }
  };
}
