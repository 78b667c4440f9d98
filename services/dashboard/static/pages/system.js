// What the run stands on: machines, processes, control server, checkpoints, the record, logs, settings.

import { get, runPath } from "../api.js";
import { timeAgo } from "../clock.js";
import { notify } from "../controls.js";
import { DataTable } from "../data_table.js";
import { emptyState, fill, h } from "../dom.js";
import { eventCard } from "../event_card.js";
import { facts } from "../facts.js";
import { ago, bytes, duration, integer } from "../format.js";
import { LogReader } from "../log_reader.js";

export const title = "System";
export const parts = ["processes", "events"];

const REFRESH_MILLISECONDS = 15_000; // what the stream does not bring

export async function show(panel, context) {
  const { run, signal } = context;
  const nodes = section("Machines", nodeTable(), "No process is heard of, so no machine is known.");
  const processes = section("Processes", processTable(), "No process is heard of.");
  const checkpoints = section("Checkpoints", checkpointTable(), "No checkpoint yet.");
  const control = controlCard();
  const logs = new LogReader(run, signal);
  const settings = settingsCards();
  fill(
    panel,
    h("div", { class: "two-columns" }, nodes.element, control.element),
    processes.element,
    checkpoints.element,
    await eventCard(context),
    logs.element,
    settings.element,
  );

  const showSystem = (view) => {
    nodes.update(view.nodes);
    control.set(view.control);
    checkpoints.update(view.checkpoints);
    settings.set(view);
    logs.setProcesses(view.logs);
  };
  showSystem(await get(runPath(run, "system"), {}, signal));
  const timer = setInterval(
    () => !document.hidden && get(runPath(run, "system"), {}, signal).then(showSystem, () => {}),
    REFRESH_MILLISECONDS,
  );
  signal.addEventListener("abort", () => clearInterval(timer));
  return context.watch("processes", (view) => processes.update(view.processes));
}

/** A table with a heading, and words in its place when it is empty. */
function section(heading, table, empty) {
  const nothing = emptyState(empty);
  return {
    element: h("section", { class: "card" }, h("h2", {}, heading), nothing, table.element),
    update(rows) {
      nothing.hidden = rows.length > 0;
      table.element.hidden = rows.length === 0;
      table.update(rows);
    },
  };
}

function nodeTable() {
  return new DataTable({
    caption: "Machines",
    keyOf: (node) => node.host,
    sort: ["host", false],
    columns: [
      { key: "host", label: "Host", value: (node) => node.host },
      {
        key: "processes",
        label: "Processes",
        numeric: true,
        value: (node) => node.processes,
        text: (node) => integer(node.processes),
      },
      {
        key: "memory",
        label: "Memory of ours",
        numeric: true,
        value: (node) => node.memory_bytes,
        text: (node) => bytes(node.memory_bytes),
      },
    ],
  });
}

function processTable() {
  return new DataTable({
    caption: "Processes",
    bounded: true,
    keyOf: (process) => process.name,
    rowProperties: (process) => ({ dataset: { testid: "process-row", name: process.name } }),
    rowClass: (process) => (process.stale ? "silent" : null),
    sort: ["role", false],
    columns: [
      { key: "name", label: "Name", value: (process) => process.name },
      { key: "role", label: "Role", value: (process) => process.role },
      { key: "host", label: "Host", value: (process) => process.host },
      { key: "pid", label: "Process id", numeric: true, value: (process) => process.process_id },
      {
        key: "heard",
        label: "Heard",
        numeric: true,
        value: (process) => process.heard_seconds,
        text: (process) => (process.stale ? `not for ${duration(process.heard_seconds)}` : ago(process.heard_seconds)),
      },
      {
        key: "memory",
        label: "Memory",
        numeric: true,
        value: (process) => process.memory_bytes,
        text: (process) => bytes(process.memory_bytes),
      },
      {
        key: "restarts",
        label: "Restarts",
        numeric: true,
        value: (process) => process.starts - 1,
        text: (process) => integer(process.starts - 1),
      },
      { key: "says", label: "Says", value: (process) => process.says },
    ],
  });
}

function checkpointTable() {
  return new DataTable({
    caption: "Checkpoints",
    keyOf: (checkpoint) => `${checkpoint.name} ${checkpoint.at}`,
    sort: ["at", true],
    columns: [
      { key: "name", label: "Name", value: (checkpoint) => checkpoint.name },
      {
        key: "steps",
        label: "Steps",
        numeric: true,
        value: (checkpoint) => checkpoint.env_steps,
        text: (checkpoint) => integer(checkpoint.env_steps),
      },
      {
        key: "size",
        label: "Size",
        numeric: true,
        value: (checkpoint) => checkpoint.size_bytes,
        text: (checkpoint) => bytes(checkpoint.size_bytes),
      },
      {
        key: "at",
        label: "Written",
        numeric: true,
        value: (checkpoint) => checkpoint.at,
        make: (checkpoint) => timeAgo(checkpoint.at),
      },
    ],
  });
}

function controlCard() {
  const list = facts(["Version", "Memory", "Clients", "Commands"]);
  const nothing = emptyState("It does not answer, or this run has none.");
  return {
    element: h("section", { class: "card" }, h("h2", {}, "Control server"), nothing, list.element),
    set(control) {
      nothing.hidden = control !== null;
      list.element.hidden = control === null;
      if (!control) return;
      const commands = `${integer(control.commands_per_second)} /s`;
      list.set([control.version, bytes(control.memory_bytes), integer(control.clients), commands]);
    },
  };
}

function settingsCards() {
  const config = h("pre", {
    class: "config",
    tabindex: "0",
    "aria-label": "Settings",
    dataset: { testid: "config" },
  });
  const versions = h("dl", { class: "facts" });
  const copy = h(
    "button",
    { type: "button", dataset: { testid: "copy-config" }, onclick: () => copyText(config.textContent) },
    "Copy",
  );
  return {
    element: h(
      "div",
      {},
      h("details", { class: "card" }, h("summary", {}, h("h2", {}, "Settings, resolved")), copy, config),
      h("details", { class: "card" }, h("summary", {}, h("h2", {}, "Versions")), versions),
    ),
    set(view) {
      if (config.textContent !== view.config) config.textContent = view.config;
      fill(
        versions,
        flattened(view.versions).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
      );
    },
  };
}

/** { packages: { torch: "2" } } -> [["torch", "2"]]. */
function flattened(versions) {
  return Object.entries(versions).flatMap(
    ([name, value]) => (value && typeof value === "object" ? flattened(value) : [[name, String(value)]]),
  );
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    notify("The settings are in the clipboard.", "good");
  } catch {
    notify("The browser does not allow copying here: select the text instead.", "bad");
  }
}
