// What state a run is in: the badge, and what it means in words. A sign stands beside each word, so that
// nobody needs the colour.

import { h, setText } from "./dom.js";
import { ago, duration } from "./format.js";

const SIGNS = { running: "●", paused: "‖", finished: "✓", stopped: "■", failed: "✕", lost: "?" };

export const STATES = Object.keys(SIGNS);

export function isAlive(state) {
  return state === "running" || state === "paused";
}

export function stateBadge(state) {
  const badge = h(
    "span",
    { class: "badge", dataset: { testid: "state" } },
    h("span", { "aria-hidden": "true" }),
    h("span", {}),
  );
  return setStateBadge(badge, state);
}

export function setStateBadge(badge, state) {
  badge.dataset.state = state;
  setText(badge.firstChild, SIGNS[state] ?? "?");
  setText(badge.lastChild, state);
  return badge;
}

// A distributed run says something all the time; one in one process only when it writes a row.
const SILENCE_SECONDS = { distributed: 20, local: 120 };

/** What to know before reading the numbers; null where they are simply fresh. */
export function stateSentence(run, nowSeconds) {
  const silentSeconds = run.heard_at === null ? null : nowSeconds - run.heard_at;
  switch (run.state) {
    case "finished":
      return "This run has ended; what you see is its record.";
    case "stopped":
      return "This run was stopped; what you see is its record. It goes on with repertory resume.";
    case "failed":
      return "This run has failed; what you see is its record. The last events say why.";
    case "lost":
      return silentSeconds === null
        ? "Nothing is heard of this run: it was ended without a word, or its machine is away."
        : `Last heard ${ago(silentSeconds)}: the run was ended without a word, or its machine is away.`;
    default:
      return isSilent(run, silentSeconds) ? `Not heard for ${duration(silentSeconds)}.` : null;
  }
}

function isSilent(run, silentSeconds) {
  return silentSeconds !== null && silentSeconds > SILENCE_SECONDS[run.distributed ? "distributed" : "local"];
}

/** "td3, sac on Pendulum-v1"; an algorithm is named where the learner has a name of its own. */
export function runTitle(run) {
  return `${learnerNames(run.learners)} on ${run.env}`;
}

export function learnerNames(learners) {
  return Object.entries(learners)
    .map(([name, algorithm]) => (name === algorithm ? name : `${name} (${algorithm})`))
    .join(", ");
}
