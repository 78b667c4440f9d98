// Lines of the run's record, newest first.

import { clockTime } from "./format.js";
import { timeAgo } from "./clock.js";
import { emptyState, h, keyed } from "./dom.js";

const SIGNS = { plain: "·", good: "✓", warning: "!", bad: "✕" };

const LEVELS_SHOWN = {
  all: ["plain", "good", "warning", "bad"],
  notable: ["good", "warning", "bad"],
  bad: ["warning", "bad"],
};

export class EventList {
  /** limit: how many lines are shown; empty: what is said while there are none. */
  constructor({ limit = Infinity, empty = "No events yet." } = {}) {
    this._limit = limit;
    this._events = new Map(); // number -> event
    this._level = "all";
    this._lines = h("ol", { class: "events" });
    this._words = emptyState(empty);
    this.element = h("div", {}, this._words, this._lines);
  }

  get oldest() {
    return this._events.size ? Math.min(...this._events.keys()) : null;
  }

  add(events) {
    for (const event of events) this._events.set(event.number, event);
    this._show();
  }

  /** "all", "notable" or "bad": a key of LEVELS_SHOWN. */
  showLevel(level) {
    this._level = level;
    this._show();
  }

  _show() {
    const wanted = (event) => LEVELS_SHOWN[this._level].includes(event.level);
    const shown = [...this._events.values()].filter(wanted).sort((a, b) => b.number - a.number).slice(0, this._limit);
    this._words.hidden = shown.length > 0;
    keyed(this._lines, shown, (event) => event.number, line);
  }
}

function line(event) {
  const details = Object.entries(event.details ?? {});
  const summary = [
    h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[event.level] ?? "·"),
    h(
      "span",
      { class: "text" },
      event.level === "warning" || event.level === "bad" ? h(
        "span",
        { class: "unseen" },
        `${event.level}: `,
      ) : null,
      event.text,
    ),
    h("span", { class: "kind" }, event.kind),
    timeAgo(event.at),
  ];
  const properties = { dataset: { testid: "event-line", level: event.level } };
  if (!details.length) return h("li", properties, h("div", { class: "event" }, summary));
  return h(
    "li",
    properties,
    h(
      "details",
      {},
      h("summary", { class: "event" }, summary),
      h(
        "pre",
        {},
        [
          `at: ${clockTime(event.at)}`,
          ...details.map(([name, value]) => `${name}: ${detailText(value)}`),
        ].join("\n"),
      ),
    ),
  );
}

function detailText(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}
