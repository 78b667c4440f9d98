// The log of one process, picked from a list; read again every few seconds while it is open.

import { get, isAbort, runPath } from "./api.js";
import { emptyState, fill, h } from "./dom.js";
import { clockTime } from "./format.js";

const REFRESH_MILLISECONDS = 3000;
const LINES = 500;

export class LogReader {
  constructor(run, signal) {
    this._run = run;
    this._signal = signal;
    this._pick = h("select", {
      id: "log-process",
      dataset: { testid: "log-process" },
      onchange: () => this._read(true),
    });
    this._lines = h("div", {
      class: "log",
      tabindex: "0",
      role: "log",
      "aria-label": "Log lines",
      "aria-live": "off",
      dataset: { testid: "log" },
    });
    this._box = h(
      "details",
      { class: "card", dataset: { testid: "logs" }, ontoggle: () => this._box.open && this._read(true) },
      h("summary", {}, h("h2", {}, "Logs")),
      h("div", { class: "toolbar" }, h("label", { for: "log-process" }, "Process"), this._pick),
      this._lines,
    );
    this.element = this._box;
    const timer = setInterval(
      () => this._box.open && !document.hidden && this._read(false),
      REFRESH_MILLISECONDS,
    );
    signal.addEventListener("abort", () => clearInterval(timer));
  }

  setProcesses(names) {
    const chosen = this._pick.value;
    fill(this._pick, names.map((name) => h("option", { value: name }, name)));
    if (names.includes(chosen)) this._pick.value = chosen;
    if (!names.length) fill(this._lines, emptyState("This run has no logs."));
  }

  async _read(atEnd) {
    const process = this._pick.value;
    if (!process) return;
    try {
      const { lines } = await get(runPath(this._run, "logs", process), { limit: LINES }, this._signal);
      if (process === this._pick.value) this._show(lines, atEnd);
    } catch (error) {
      if (!isAbort(error)) fill(this._lines, emptyState(error.message));
    }
  }

  /** Stays at the end if one is there, and where one reads otherwise. */
  _show(lines, atEnd) {
    const newest = lines.at(-1);
    const key = `${this._pick.value} ${lines.length} ${newest?.at} ${newest?.message}`;
    if (key === this._shown) return;
    this._shown = key;
    const box = this._lines;
    const follows = atEnd || box.scrollTop + box.clientHeight > box.scrollHeight - 30;
    const kept = box.scrollTop;
    fill(box, lines.length ? lines.map(logLine) : emptyState("This process has written nothing to its log."));
    box.scrollTop = follows ? box.scrollHeight : kept;
  }
}

function logLine(line) {
  return h(
    "div",
    { class: "log-line", dataset: { level: line.level } },
    h("time", {}, line.at === null ? "" : clockTime(line.at)),
    h("span", { class: "level" }, line.level),
    h("span", { class: "message" }, `${line.logger}: ${line.message}`),
  );
}
