// Sorts the metrics of learners: which belong together, and in which order they are shown. Algorithms
// name their own, so whatever is not known lands under "Other".

import { words } from "./format.js";

const GROUPS = [
  ["Losses", /loss/],
  ["Values", /(^|_)q(_|$)|(^|_)values?(_|$)|advantage|td_error|return|reward|explained_variance/],
  ["Exploration", /entropy|alpha|temperature|epsilon|noise|std|termination/],
  ["KL and gradients", /(^|_)(kl|clip|ratio|grad|gradient|norm|lr|learning_rate|step_size|line_search)(_|$)/],
  ["Pace", /waiting|per_second|staleness|(^|_)lag(_|$)|dropped|seconds|skipped/],
];
const OTHER = "Other";
const OPTIONS = "Options in force";
const OPTION_SHARE = /^option_share_(\d+)$/;
const SHARES = /share$|fraction$/;

/**
 * learners: [{ name, metrics }] as the server has them.
 * Returns [{ group, kinds: [{ kind, isShare, isLoss, isWhole, lines: [{ metric, learner, option? }] }] }]: one
 * kind is one chart, with a line for each learner that has it. The options of a learner are parts of a whole, in
 * a chart of its own.
 */
export function groupMetrics(learners) {
  const byKind = new Map();
  for (const { name, metrics } of learners) {
    for (const metric of metrics) {
      const kind = kindOf(metric, name);
      if (kind === "updates") continue; // a count: the cards have it
      const option = OPTION_SHARE.exec(kind)?.[1];
      const chart = option ? `options of ${name}` : kind;
      if (!byKind.has(chart)) byKind.set(chart, []);
      byKind.get(chart).push({ metric, learner: name, option: option && Number(option) });
    }
  }
  const order = [OPTIONS, ...GROUPS.map(([group]) => group), OTHER];
  const groups = new Map(order.map((group) => [group, []]));
  for (const [kind, lines] of byKind) {
    const isWhole = lines.some((line) => line.option);
    const group = isWhole ? OPTIONS : groupOf(kind);
    groups.get(group).push({ kind, isShare: SHARES.test(kind), isLoss: kind.includes("loss"), isWhole, lines });
  }
  return [...groups].filter(([, kinds]) => kinds.length).map(
    ([group, kinds]) => ({ group, kinds: kinds.sort(byRelevance) }),
  );
}

/** learner/td3/critic_loss and learner/critic_loss are both critic_loss. */
export function kindOf(metric, learner) {
  const withName = `learner/${learner}/`;
  if (metric.startsWith(withName)) return metric.slice(withName.length);
  return metric.startsWith("learner/") ? metric.slice("learner/".length) : metric;
}

/** policy_loss -> policy loss, approximate_kl -> approximate KL. */
export function titleOf(kind) {
  return words(kind)
    .replace(/\bkl\b/g, "KL")
    .replace(/\bq\b/g, "Q")
    .replace(/\bgrad\b/g, "gradient");
}

function groupOf(kind) {
  return GROUPS.find(([, pattern]) => pattern.test(kind))?.[0] ?? OTHER;
}

/** What most learners have comes first. */
function byRelevance(a, b) {
  return b.lines.length - a.lines.length || a.kind.localeCompare(b.kind);
}
