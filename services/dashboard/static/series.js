// Brings metrics to charts: fetches them (thinned by the server) when a chart is first seen, appends the
// rows that the run writes, and fetches again when a line has grown long, when the axis changes, or
// when rows may have been missed.

import { get, isAbort, runPath } from "./api.js";
import { Chart } from "./charts.js";
import { h } from "./dom.js";

const POINTS = 1500; // asked of the server
const MOST_POINTS = 3000; // then a line is thinned again
const NAMES_PER_REQUEST = 30; // an address has its limits
const GATHER_MILLISECONDS = 40; // charts that come into sight together are one request
const MOST_MARKED_POINTS = 60;
const EVALUATIONS_PAUSE_MILLISECONDS = 2000;
const AXIS_KEY = "repertory-axis";

const AXES = { steps: "environment steps", time: "minutes" };

export class SeriesFeed {
  constructor(run, signal) {
    this._run = run;
    this._signal = signal;
    this._axis = rememberedAxis();
    this._entries = new Set(); // { chart, lines, evaluations, traces, asked, loaded }
    this._waiting = new Set();
    this._timer = undefined;
    this._due = 0; // when the timer ends
    signal.addEventListener("abort", () => clearTimeout(this._timer));
  }

  /**
   * A chart of metrics; other options are Chart's.
   * lines: [{ metric, label, place, thin? }]
   * evaluations: (learner) => { label, place, dash?, plain? }, for a chart that shows the evaluated returns too;
   *   plain: without deviation and markers
   */
  chart({ lines, evaluations = null, ...options }) {
    const entry = { lines, evaluations, traces: [], asked: false, loaded: false };
    entry.chart = new Chart({ ...options, signal: this._signal, onSight: () => this._request(entry) });
    this._entries.add(entry);
    return {
      element: entry.chart.element,
      setLines: (changed) => {
        entry.lines = changed;
        if (entry.loaded) this._request(entry);
      },
    };
  }

  /** Rows as the run writes them. */
  receive(rows) {
    for (const entry of this._entries) {
      if (!entry.loaded) continue;
      let changed = false;
      for (const row of rows) {
        const x = this._axis === "steps" ? row.step : row.seconds === null ? null : row.seconds / 60;
        if (x === null) continue;
        for (const trace of entry.traces) changed = append(trace, x, row.values) || changed;
        if (entry.evaluations && Object.keys(row.values).some((name) => name.startsWith("eval/"))) {
          this._request(entry, EVALUATIONS_PAUSE_MILLISECONDS);
        }
      }
      if (changed) entry.chart.touch();
      if (entry.traces.some((trace) => trace.x.length > MOST_POINTS)) this._request(entry);
    }
  }

  /** Everything that is shown, again. */
  refresh() {
    for (const entry of this._entries) if (entry.asked) this._request(entry);
  }

  /** Two radio buttons that choose the axis of all charts of this feed, and remember it. */
  axisSwitch() {
    const option = (axis, label) =>
      h(
        "label",
        {},
        h("input", {
          type: "radio",
          name: "axis",
          value: axis,
          checked: this._axis === axis,
          onchange: () => this._setAxis(axis),
          dataset: { testid: `axis-${axis}` },
        }),
        h("span", {}, label),
      );
    return h(
      "fieldset",
      { class: "segmented" },
      h("legend", { class: "unseen" }, "Horizontal axis"),
      option("steps", "Steps"),
      option("time", "Time"),
    );
  }

  _setAxis(axis) {
    this._axis = axis;
    try {
      localStorage.setItem(AXIS_KEY, axis);
    } catch {
      // Then it is chosen again next time.
    }
    this.refresh();
  }

  _request(entry, pauseMilliseconds = GATHER_MILLISECONDS) {
    entry.asked = true;
    this._waiting.add(entry);
    const due = performance.now() + pauseMilliseconds;
    if (this._timer !== undefined && this._due <= due) return;
    clearTimeout(this._timer);
    this._due = due;
    this._timer = setTimeout(() => this._load(), pauseMilliseconds);
  }

  async _load() {
    const entries = [...this._waiting];
    const axis = this._axis;
    this._waiting.clear();
    this._timer = undefined;
    try {
      const names = [...new Set(entries.flatMap((entry) => entry.lines.map((line) => line.metric)))];
      const [series, evaluations] = await Promise.all([
        this._series(names, axis),
        entries.some((entry) => entry.evaluations) ? get(
          runPath(this._run, "evaluations"),
          { axis },
          this._signal,
        ) : null,
      ]);
      for (const entry of entries) {
        if (axis === this._axis) this._show(entry, series, evaluations);
        else this._request(entry); // switched in the meantime
      }
    } catch (error) {
      if (isAbort(error)) return;
      for (const entry of entries) if (!entry.loaded) entry.chart.fail(`Not to be had: ${error.message}`);
    }
  }

  async _series(names, axis) {
    const requests = [];
    for (let start = 0; start < names.length; start += NAMES_PER_REQUEST) {
      const some = names.slice(start, start + NAMES_PER_REQUEST);
      requests.push(get(runPath(this._run, "series"), { names: some, points: POINTS, axis }, this._signal));
    }
    return Object.assign({}, ...(await Promise.all(requests)).map((answer) => answer.series));
  }

  _show(entry, series, evaluations) {
    const scale = this._axis === "time" ? 1 / 60 : 1; // seconds to minutes
    const scaled = (values) => (scale === 1 ? values : values.map((value) => value * scale));
    const lines = entry.lines
      .filter((line) => series[line.metric])
      .map((line) => ({ ...line, x: scaled(series[line.metric].x), y: series[line.metric].y }));
    const curves = Object.entries(entry.evaluations ? evaluations.curves : {}).map(([learner, curve]) => {
      const look = entry.evaluations(learner);
      const spread = look.plain ? null : evaluations.deviations[learner];
      return {
        ...look,
        markers: !look.plain && curve.x.length < MOST_MARKED_POINTS,
        x: scaled(curve.x),
        y: curve.y,
        low: spread && curve.y.map((mean, index) => mean - spread[index]),
        high: spread && curve.y.map((mean, index) => mean + spread[index]),
      };
    });
    entry.traces = [...lines, ...curves];
    entry.loaded = true;
    entry.chart.setTraces(entry.traces, AXES[this._axis]);
  }
}

/** A row can be older than what was fetched: only what is new is appended. */
function append(trace, x, values) {
  if (!(trace.metric in values) || x <= (trace.x.at(-1) ?? -Infinity)) return false;
  trace.x.push(x);
  trace.y.push(values[trace.metric]);
  return true;
}

function rememberedAxis() {
  try {
    return localStorage.getItem(AXIS_KEY) === "time" ? "time" : "steps";
  } catch {
    return "steps";
  }
}
