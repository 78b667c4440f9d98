// plotly.js: fetched once, when it is first needed, and what all charts have in common of it.

import { cssColour, dashOf, lineColour, transparent } from "./palette.js";

const SOURCE = "/static/plotly.min.js";

let loading;

/** The global `Plotly`, as a promise. */
export function loadPlotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = SOURCE;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      loading = undefined; // so that the next chart tries again
      reject(new Error("plotly.js could not be fetched"));
    };
    document.head.append(script);
  });
  return loading;
}

export const PLOT_CONFIG = { displayModeBar: false, responsive: false, doubleClick: "reset", showTips: false };

// Dragging zooms with a mouse; a finger shall scroll the page.
const dragMode = matchMedia("(pointer: coarse)").matches ? false : "zoom";

/** The layout of a chart under the theme of the moment; xCategories: how many names are on its x axis. */
export function layoutOf({ xTitle, xCategories, percent, log, stacked, revision }) {
  const muted = cssColour("--muted");
  const axis = {
    gridcolor: cssColour("--grid"),
    linecolor: cssColour("--border"),
    zerolinecolor: cssColour("--border"),
    tickfont: { color: muted },
    automargin: false,
  };
  return {
    autosize: true,
    margin: { l: 58, r: 14, t: 8, b: xTitle ? 40 : 26 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: cssColour("--text") },
    showlegend: false,
    hovermode: xCategories ? "closest" : "x unified",
    hoverlabel: {
      bgcolor: cssColour("--surface"),
      bordercolor: cssColour("--border"),
      font: { color: cssColour("--text") },
    },
    dragmode: xCategories ? false : dragMode,
    datarevision: revision,
    uirevision: "kept", // a zoom survives new data
    xaxis: {
      ...axis,
      type: xCategories ? "category" : "linear",
      ...(xCategories ? { range: [-0.5, xCategories - 0.5] } : {}),
      title: { text: xTitle ?? "", font: { color: muted }, standoff: 6 },
      tickformat: xCategories ? "" : "~s",
      hoverformat: ",.6~r",
      ...(xCategories ? {} : { unifiedhovertitle: { text: `%{x} ${xTitle}` } }),
      showgrid: !xCategories,
      nticks: 7,
      fixedrange: Boolean(xCategories),
    },
    yaxis: {
      ...axis,
      type: log ? "log" : "linear",
      tickformat: percent ? ".0%" : "",
      exponentformat: "SI",
      separatethousands: true,
      nticks: log ? 4 : 6,
      fixedrange: Boolean(xCategories),
      ...(stacked ? { range: [0, 1], fixedrange: true } : percent ? { rangemode: "tozero" } : {}),
    },
  };
}

/**
 * plotly's traces of one of ours: { label, place, x, y, low?, high?, markers?, thin?, dash?,
 * hidden? }.
 * A band is two lines without width, and what is between them is filled.
 */
export function plotlyTraces(trace, { stacked, percent, xCategories }) {
  const colour = lineColour(trace.place);
  const visible = !trace.hidden;
  const name = shortened(trace.label);
  const hovertemplate = `%{y:${percent ? ".1%" : ",.6~r"}}`;
  if (xCategories) return [points(trace, { colour, name })];
  const line = {
    type: "scatter",
    mode: trace.markers ? "lines+markers" : "lines",
    name,
    x: trace.x,
    y: trace.y,
    visible,
    hovertemplate,
    line: { color: colour, width: trace.thin ? 1.2 : 1.7, dash: trace.dash ?? dashOf(trace.place) },
    marker: { size: 5, symbol: trace.place === "neutral" ? 4 : trace.place % 6 },
  };
  if (stacked) {
    // Thinning keeps other points of each series: between them they are interpolated, not zero.
    return [{
      ...line,
      stackgroup: "shares",
      stackgaps: "interpolate",
      fillcolor: transparent(colour, 0.55),
      line: { color: colour, width: 1 },
    }];
  }
  if (!trace.low) return [line];
  const edge = {
    type: "scatter",
    mode: "lines",
    x: trace.x,
    visible,
    hoverinfo: "skip",
    line: { width: 0, color: colour },
  };
  const band = [
    { ...edge, y: trace.low },
    { ...edge, y: trace.high, fill: "tonexty", fillcolor: transparent(colour, 0.16) },
  ];
  return [...band, line];
}

/** Values with intervals, one for each category. */
function points(trace, { colour, name }) {
  return {
    type: "scatter",
    mode: "markers",
    name,
    x: trace.x.map(shortened),
    y: trace.y,
    visible: !trace.hidden,
    hovertemplate: "%{x}: %{y:,.6~r}<extra></extra>",
    marker: { size: 10, color: colour, symbol: trace.place % 6 },
    error_y: {
      type: "data",
      symmetric: false,
      array: trace.high.map((high, index) => high - trace.y[index]),
      arrayminus: trace.low.map((low, index) => trace.y[index] - low),
      color: colour,
      thickness: 2,
      width: 8,
    },
  };
}

/** plotly reads a few tags and entities in names: none of ours shall be read so, nor fill a hover label. */
function shortened(label) {
  const text = label.length > 28 ? `${label.slice(0, 27)}…` : label;
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
