// The rollout processes: what each does, how old its weights are, what went wrong; and how many there are.

import { askAndSend, controlButton } from "../controls.js";
import { timeAgo } from "../clock.js";
import { DataTable } from "../data_table.js";
import { emptyState, fill, h, setAttribute, setText } from "../dom.js";
import { ago, bytes, count, duration, integer, rate } from "../format.js";
import { isAlive } from "../run_state.js";

export const title = "Actors";
export const parts = ["processes"];

const ROLE = "worker";

export function show(panel, context) {
  const summary = h("p", { class: "note" });
  const nothing = emptyState("Loading…");
  let wanted = null;
  const scale = controlButton({
    testid: "scale",
    label: "Change their number",
    onclick: () => askForScale(context.run, wanted),
  });
  const table = actorTable();
  table.element.hidden = true;
  fill(
    panel,
    h("div", { class: "section-head" }, h("h2", {}, "Actors"), summary, scale),
    nothing,
    table.element,
  );

  return context.watch("processes", ({ processes, wanted_actors }) => {
    const { run } = context.overview();
    const actors = processes.filter((process) => process.role === ROLE);
    wanted = wanted_actors;
    scale.hidden = !run.steerable;
    setText(summary, actors.length ? summaryWords(actors, wanted) : "");
    nothing.hidden = actors.length > 0;
    table.element.hidden = actors.length === 0;
    setText(nothing, whyNone(run));
    table.update(actors);
  });
}

function summaryWords(actors, wanted) {
  const silent = actors.filter((actor) => actor.stale).length;
  const speed = actors.reduce((sum, actor) => sum + (actor.steps_per_second ?? 0), 0);
  const ofWanted = wanted === null || wanted === actors.length ? "" : ` of ${integer(wanted)}`;
  const words = [`${integer(actors.length)}${ofWanted} heard of`, rate(speed, "steps")];
  if (silent) words.splice(1, 0, `${integer(silent)} silent`);
  return words.join(" · ");
}

function whyNone(run) {
  if (!isAlive(run.state)) return "This run has ended, and its actors with it.";
  if (!run.distributed) return "This run acts in its own process; it has no actors to list.";
  return "No actor has been heard of yet.";
}

function actorTable() {
  return new DataTable({
    caption: "Actors",
    cards: "dense",
    keyOf: (actor) => actor.name,
    rowProperties: (actor) => ({ dataset: { testid: "actor-row", name: actor.name } }),
    rowClass: (actor) => (actor.stale ? "silent" : null),
    sort: ["name", false],
    columns: [
      { key: "name", label: "Name", value: (actor) => actor.name, wide: true, bare: true },
      { key: "host", label: "Host", value: (actor) => actor.host, update: clipped((actor) => actor.host) },
      {
        key: "heard",
        label: "Heard",
        numeric: true,
        value: (actor) => actor.heard_seconds,
        text: (actor) => (actor.stale ? `not for ${duration(actor.heard_seconds)}` : ago(actor.heard_seconds)),
      },
      {
        key: "speed",
        label: "Steps/s",
        numeric: true,
        value: (actor) => actor.steps_per_second,
        text: (actor) => rate(actor.steps_per_second, "").replace(" /s", ""),
      },
      {
        key: "steps",
        label: "Steps",
        numeric: true,
        value: (actor) => actor.env_steps,
        text: (actor) => integer(actor.env_steps),
      },
      {
        key: "policy",
        label: "Policy",
        title: "Whose weights it has, and their version",
        value: weightsText,
        update: clipped(weightsText),
      },
      {
        key: "lag",
        label: "Lag",
        title: "Versions behind the learner, and how old the weights are",
        numeric: true,
        value: worstLag,
        text: lagText,
      },
      {
        key: "restarts",
        label: "Restarts",
        numeric: true,
        value: (actor) => actor.starts - 1,
        text: (actor) => integer(actor.starts - 1),
      },
      {
        key: "broken",
        label: "Broken",
        title: "Episodes that ended by a fault of the environment",
        numeric: true,
        value: (actor) => actor.broken_episodes,
        text: (actor) => integer(actor.broken_episodes),
      },
      {
        key: "memory",
        label: "Memory",
        numeric: true,
        value: (actor) => actor.memory_bytes,
        text: (actor) => bytes(actor.memory_bytes),
      },
      {
        key: "error",
        label: "Last error",
        wide: true,
        value: (actor) => actor.last_error ?? "",
        update: showError,
      },
    ],
  });
}

function clipped(textOf) {
  return (cell, row) => {
    if (!cell.firstChild) cell.append(h("span", { class: "clip" }));
    setText(cell.firstChild, textOf(row));
    setAttribute(cell.firstChild, "title", textOf(row));
  };
}

function weightsText(actor) {
  return actor.weights.map((weights) => `${weights.policy} ${integer(weights.version)}`).join(", ") || "–";
}

function worstLag(actor) {
  return actor.weights.reduce(
    (worst, weights) => (weights.lag_versions === null ? worst : Math.max(worst ?? 0, weights.lag_versions)),
    null,
  );
}

function lagText(actor) {
  const lag = worstLag(actor);
  const ages = actor.weights.map((weights) => weights.age_seconds).filter((age) => age !== null);
  return lag === null ? "–" : `${integer(lag)}${ages.length ? ` · ${duration(Math.max(...ages))}` : ""}`;
}

/** Made anew when there is another one: it holds a time that goes on counting. */
function showError(cell, actor) {
  const key = `${actor.last_error} ${actor.last_error_at}`;
  if (cell.dataset.key === key) return;
  cell.dataset.key = key;
  fill(cell);
  if (!actor.last_error) return;
  const summary = h("summary", { class: "clip" }, actor.last_error);
  cell.append(h("details", {}, summary, h("p", { class: "long" }, actor.last_error)));
  if (actor.last_error_at !== null) cell.append(h("span", { class: "note" }, timeAgo(actor.last_error_at)));
}

function askForScale(run, wanted) {
  const now = wanted === null ? "" : `; ${count(wanted, "actor")} ${wanted === 1 ? "is" : "are"} wanted now`;
  const input = h("input", {
    id: "scale-actors",
    type: "number",
    min: "0",
    max: "10000",
    step: "1",
    required: true,
    value: wanted ?? 1,
    dataset: { testid: "scale-actors" },
  });
  askAndSend({
    run,
    title: "Change the number of actors",
    action: "Change it",
    sentence: `Actors are started or ended until there are so many${now}. Learning goes on meanwhile.`,
    fields: [h("div", { class: "field" }, h("label", { for: "scale-actors" }, "Actors"), input)],
    makeOrder: () => ({ name: "scale", actors: Number(input.value) }),
  });
}
