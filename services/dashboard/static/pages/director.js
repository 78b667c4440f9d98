// Who is chosen to act, and why: shares over time, what the director believes, and pin, bench, release.

import { Chart } from "../charts.js";
import { timeAgo } from "../clock.js";
import { askAndSend, controlButton } from "../controls.js";
import { DataTable } from "../data_table.js";
import { emptyState, fill, h } from "../dom.js";
import { tile } from "../facts.js";
import { UNKNOWN, integer, number, percent } from "../format.js";
import { colourClass } from "../palette.js";

export const title = "Director";
export const parts = ["rows", "director"];

const WITHOUT_PORTFOLIO =
  "This run has one learner, so there is nobody to choose between. With several (--algo td3,sac) a " +
  "director decides who acts, and this page shows how.";

export function show(panel, context) {
  if (context.learners.length < 2) {
    fill(panel, emptyState(WITHOUT_PORTFOLIO));
    return undefined;
  }
  const strategy = tile("Strategy", { testid: "strategy" });
  const decisions = tile("Decisions", { testid: "decisions" });
  const regret = tile("Regret", {
    testid: "regret",
    title: "What was lost, per episode of late, against always choosing the best policy",
  });
  const total = tile("Total regret", { testid: "total-regret" });
  const candidates = candidateTable(context);
  const newest = decisionTable(context);
  const noDecisions = emptyState("No decision yet: the first comes with the first episode.");
  const beliefs = new Chart({
    key: "estimates-now",
    title: "Believed return, now",
    note: "with intervals",
    empty: "Nothing is believed yet: no episode has ended.",
    xCategories: true,
    signal: context.signal,
  });

  fill(
    panel,
    h("div", { class: "tiles" }, strategy.element, decisions.element, regret.element, total.element),
    h("section", { class: "card" }, h("h2", {}, "Policies"), candidates.element),
    h("div", { class: "section-head" }, h("h2", {}, "Over time"), context.feed.axisSwitch()),
    overTime(context, beliefs.element),
    h("section", { class: "card" }, h("h2", {}, "Last decisions"), noDecisions, newest.element),
  );
  return context.watch("director", (view) => {
    strategy.set(view.strategy ?? UNKNOWN, { note: "how it chooses" });
    decisions.set(integer(view.decisions), { note: "choices of who acts" });
    regret.set(number(view.regret), { note: "per episode, of late" });
    total.set(number(view.total_regret), { note: "since the run began" });
    candidates.update(view.candidates);
    const believed = view.candidates.filter((candidate) => candidate.mean !== null);
    beliefs.setTraces(
      believed.map((candidate) => ({
        label: candidate.name,
        place: placeFor(context, candidate.name),
        x: [candidate.name],
        y: [candidate.mean],
        low: [candidate.low ?? candidate.mean],
        high: [candidate.high ?? candidate.mean],
      })),
      "",
    );
    noDecisions.hidden = view.newest.length > 0;
    newest.element.hidden = view.newest.length === 0;
    newest.update(view.newest);
  });
}

/** A policy that is no learner of the run has the colour after theirs. */
function placeFor({ placeOf, learners }, policy) {
  const place = placeOf(policy);
  return place === "neutral" ? learners.length : place;
}

function overTime({ feed, learners, placeOf }, beliefsNow) {
  const lines = (metric) => learners.map(
    (learner) => ({ metric: `director/${learner}/${metric}`, label: learner, place: placeOf(learner) }),
  );
  const regret = feed.chart({
    key: "regret",
    title: "Regret",
    note: "per episode, of late",
    lines: [{ metric: "director/regret", label: "regret", place: "neutral" }],
  });
  regret.element.classList.add("wide");
  return h(
    "div",
    { class: "charts" },
    feed.chart({
      key: "acting-share",
      title: "Share of acting",
      note: "of the newest episodes' steps",
      stacked: true,
      lines: lines("step_share"),
    }).element,
    feed.chart({
      key: "update-share",
      title: "Share of updates",
      stacked: true,
      lines: lines("update_share"),
    }).element,
    beliefsNow,
    feed.chart({ key: "estimates", title: "Believed return", lines: lines("estimate") }).element,
    regret.element,
  );
}

function candidateTable(context) {
  return new DataTable({
    caption: "Policies",
    cards: true,
    keyOf: (candidate) => candidate.name,
    rowProperties: (candidate) => ({ dataset: { testid: "candidate-row", name: candidate.name } }),
    columns: [
      {
        key: "name",
        label: "Policy",
        value: (candidate) => candidate.name,
        make: (candidate) => policyName(candidate.name, context),
        wide: true,
        bare: true,
      },
      { key: "standing", label: "Standing", value: standing, text: standing },
      {
        key: "share",
        label: "Chosen",
        title: "Share of the newest choices",
        numeric: true,
        value: (candidate) => candidate.share,
        text: (candidate) => percent(candidate.share, 1),
      },
      {
        key: "steps",
        label: "Steps",
        title: "Share of the newest episodes' steps",
        numeric: true,
        value: (candidate) => candidate.step_share,
        text: (candidate) => percent(candidate.step_share, 1),
      },
      {
        key: "updates",
        label: "Updates",
        title: "Share of updates",
        numeric: true,
        value: (candidate) => candidate.update_share,
        text: (candidate) => percent(candidate.update_share, 1),
      },
      {
        key: "mean",
        label: "Believed return",
        numeric: true,
        value: (candidate) => candidate.mean,
        text: believed,
      },
      {
        key: "count",
        label: "Episodes",
        title: "That the belief rests upon",
        numeric: true,
        value: (candidate) => candidate.count,
        text: (candidate) => integer(candidate.count),
      },
      {
        key: "controls",
        label: "",
        wide: true,
        bare: true,
        make: (candidate) => steeringButtons(candidate, context),
        update: (cell, candidate) => cell.firstChild.show(candidate),
      },
    ],
  });
}

function standing(candidate) {
  return candidate.pinned ? "pinned" : candidate.benched ? "benched" : "free";
}

function believed({ mean, low, high }) {
  if (mean === null) return "not known yet";
  return low === null || high === null ? number(mean) : `${number(mean)} (${number(low)} to ${number(high)})`;
}

function policyName(name, context) {
  return h(
    "span",
    { class: "policy" },
    h("span", { class: `swatch block ${colourClass(placeFor(context, name))}`, "aria-hidden": "true" }),
    h("span", { class: "clip", title: name }, name),
  );
}

function steeringButtons(candidate, context) {
  const { name } = candidate;
  const button = (order, action, sentence) => {
    const ask = () =>
      askAndSend({
        run: context.run,
        title: `${action} ${name}`,
        action,
        sentence,
        makeOrder: () => ({ name: order, policy: name }),
      });
    const made = controlButton({ testid: `${order}-${name}`, label: action, onclick: ask });
    made.setAttribute("aria-label", `${action} ${name}`);
    return made;
  };
  const until = "from the next episode on, until it is released";
  const pin = button("pin", "Pin", `${name} acts alone, ${until}; the others go on learning.`);
  const bench = button("bench", "Bench", `${name} does not act, ${until}; it goes on learning.`);
  const release = button("release", "Release", `The director is free again to choose ${name} or not.`);
  const box = h("div", { class: "row-controls" }, pin, bench, release);
  box.show = (now) => {
    box.hidden = !context.overview().run.steerable;
    pin.hidden = now.pinned;
    bench.hidden = now.benched;
    release.hidden = !now.pinned && !now.benched;
  };
  return box;
}

/** A decision never changes but for what came of it. */
function decisionTable(context) {
  return new DataTable({
    caption: "Last decisions",
    bounded: true,
    keyOf: (line) => line.number,
    sort: ["number", true],
    rowProperties: () => ({ dataset: { testid: "decision-row" } }),
    columns: [
      {
        key: "number",
        label: "Number",
        numeric: true,
        fixed: true,
        value: (line) => line.number,
        text: (line) => integer(line.number),
      },
      { key: "at", label: "When", make: (line) => timeAgo(line.at) },
      { key: "actor", label: "Actor", fixed: true, value: (line) => line.actor },
      { key: "policy", label: "Policy", make: (line) => policyName(line.policy, context) },
      { key: "reason", label: "Why", fixed: true, value: (line) => line.reason },
      {
        key: "probability",
        label: "Probability",
        numeric: true,
        fixed: true,
        value: (line) => line.probability,
        text: (line) => percent(line.probability),
      },
      {
        key: "return",
        label: "Return",
        numeric: true,
        fixed: true,
        value: (line) => line.episode_return,
        text: (line) => number(line.episode_return),
        title: "Of the episode, once it has ended",
      },
      {
        key: "length",
        label: "Steps",
        numeric: true,
        fixed: true,
        value: (line) => line.length,
        text: (line) => integer(line.length),
      },
    ],
  });
}
