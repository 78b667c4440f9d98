// A chart: a figure with a title, a legend that switches lines on and off and has the newest value of
// each, and a plot of fixed height. It draws when it is in sight and the tab is, at most once a second.

import { emptyState, fill, h, setText } from "./dom.js";
import { number, percent as asPercent } from "./format.js";
import { colourClass, dashOf } from "./palette.js";
import { PLOT_CONFIG, layoutOf, loadPlotly, plotlyTraces } from "./plotting.js";
import { onThemeChange } from "./theme.js";

const DRAW_EVERY_MILLISECONDS = 1000;

export class Chart {
  /**
   * key: for data-testid, chart-<key>
   * title, note: a line above the plot, and what it means
   * empty: said while there is nothing to draw
   * stacked, percent: shares from 0 to 1, stacked or as lines
   * xCategories: points with intervals over names instead of lines
   * logSwitch: offer a logarithmic axis
   * signal: the page's; the chart ends with it
   * onSight: called once, when it is first seen: the time to fetch its data
   */
  constructor({ key, title, note, empty, stacked, percent, xCategories, logSwitch, signal, onSight }) {
    this._options = { title, stacked, percent: percent || stacked, xCategories };
    this._traces = [];
    this._hidden = new Set(); // labels that the legend has switched off
    this._log = false;
    this._xTitle = "";
    this._revision = 0; // of the data and the look
    this._drawn = -1; // the revision that is on the screen
    this._inSight = false;
    this._lastDrawn = 0;
    this._timer = undefined;
    this._plotted = false;
    this._empty = empty ?? "Nothing yet.";
    this._legend = h("ul", { class: "legend" });
    this._legendValues = new Map();
    this._words = emptyState("Loading…");
    this._plot = h("div", { class: "plot-area", role: "img", "aria-label": title });
    this.element = h(
      "figure",
      { class: "chart", dataset: { testid: `chart-${key}` } },
      h(
        "figcaption",
        {},
        h("h3", {}, title),
        note && h("span", { class: "note" }, note),
        logSwitch && this._logButton(),
      ),
      this._legend,
      h("div", { class: "plot" }, this._plot, this._words),
    );
    this._watch(signal, onSight);
  }

  /** Traces as plotting.js has them: { label, place, x, y, low?, high?, markers?, thin?, dash? }. */
  setTraces(traces, xTitle) {
    this._xTitle = xTitle;
    this._traces = traces;
    setText(this._words, this._hasPoints() ? "Drawing…" : this._empty);
    this._makeLegend();
    this._plot.setAttribute(
      "aria-label",
      `${this._options.title} against ${xTitle || "name"}: ${traces.map((trace) => trace.label).join(", ")}`,
    );
    this.touch();
  }

  /** Says in words why there is no plot. */
  fail(text) {
    this._empty = text;
    setText(this._words, text);
  }

  /** The arrays of the traces have changed. */
  touch() {
    this._revision += 1;
    this._showNewest();
    this._schedule();
  }

  _watch(signal, onSight) {
    let unseen = true;
    const sight = new IntersectionObserver(
      (entries) => {
        this._inSight = entries.at(-1).isIntersecting;
        if (!this._inSight) return;
        if (unseen) onSight?.();
        unseen = false;
        this._schedule();
      },
      { rootMargin: "150px" },
    );
    sight.observe(this.element);
    let width = 0;
    const size = new ResizeObserver(() => {
      const changed = this._plot.clientWidth > 0 && this._plot.clientWidth !== width;
      if (this._plotted && changed) window.Plotly.Plots.resize(this._plot);
      width = this._plot.clientWidth;
    });
    size.observe(this._plot);
    const seenAgain = () => this._schedule();
    document.addEventListener("visibilitychange", seenAgain, { signal });
    onThemeChange(() => this._redrawSoon(), signal);
    signal.addEventListener("abort", () => {
      sight.disconnect();
      size.disconnect();
      clearTimeout(this._timer);
      if (this._plotted) window.Plotly.purge(this._plot);
      this._plotted = false;
      this._inSight = false;
    });
  }

  _redrawSoon() {
    this._revision += 1;
    this._lastDrawn = 0;
    this._schedule();
  }

  _schedule() {
    if (this._timer !== undefined || !this._inSight || document.hidden || this._drawn === this._revision) return;
    const wait = Math.max(0, this._lastDrawn + DRAW_EVERY_MILLISECONDS - performance.now());
    this._timer = setTimeout(() => {
      this._timer = undefined;
      this._draw();
    }, wait);
  }

  _hasPoints() {
    return this._traces.some((trace) => trace.x.length > 0);
  }

  async _draw() {
    const hasPoints = this._hasPoints();
    this._words.hidden = hasPoints;
    this._plot.hidden = !hasPoints;
    if (!hasPoints) return;
    let plotly;
    try {
      plotly = await loadPlotly();
    } catch {
      this._words.hidden = false;
      setText(this._words, "The charts could not be loaded. Reload the page to try again.");
      return;
    }
    if (!this._inSight) return; // the page was left in the meantime
    this._drawn = this._revision;
    this._lastDrawn = performance.now();
    const xCategories = this._options.xCategories ? this._traces.length : 0;
    const options = {
      ...this._options,
      xCategories,
      xTitle: this._xTitle,
      log: this._log,
      revision: this._revision,
    };
    const traces = this._traces.flatMap((trace) => plotlyTraces(
      { ...trace, hidden: this._hidden.has(trace.label) },
      options,
    ));
    await plotly.react(this._plot, traces, layoutOf(options), PLOT_CONFIG);
    this._plotted = true;
  }

  _makeLegend() {
    this._legendValues.clear();
    const entries = this._options.xCategories ? [] : this._traces;
    fill(
      this._legend,
      entries.map((trace) => {
        const value = h("span", { class: "value" });
        const shape = this._options.stacked ? "block" : (trace.dash ?? dashOf(trace.place));
        this._legendValues.set(trace, value);
        const button = h(
          "button",
          {
            type: "button",
            class: "quiet",
            "aria-pressed": String(!this._hidden.has(trace.label)),
            title: `Show or hide ${trace.label}`,
          },
          h("span", {
            class: `swatch ${colourClass(trace.place)} ${shape}`,
            "aria-hidden": "true",
          }),
          h("span", { class: "name" }, trace.label),
          value,
        );
        button.addEventListener("click", () => {
          const hide = !this._hidden.has(trace.label);
          if (hide) this._hidden.add(trace.label);
          else this._hidden.delete(trace.label);
          button.setAttribute("aria-pressed", String(!hide));
          this._redrawSoon();
        });
        return h("li", {}, button);
      }),
    );
  }

  _showNewest() {
    for (const [trace, element] of this._legendValues) {
      const newest = trace.y.at(-1);
      setText(element, this._options.percent ? asPercent(newest, 1) : number(newest));
    }
  }

  _logButton() {
    const button = h(
      "button",
      { type: "button", class: "quiet small", "aria-pressed": "false", title: "Logarithmic axis" },
      "log",
    );
    button.addEventListener("click", () => {
      this._log = !this._log;
      button.setAttribute("aria-pressed", String(this._log));
      this._redrawSoon();
    });
    return button;
  }
}
