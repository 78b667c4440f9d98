// Numbers with names: the tiles at the top of a page, and lists of small facts.

import { h, setAttribute, setText } from "./dom.js";
import { UNKNOWN } from "./format.js";

/** A number with a name: what the pages have at their top. */
export function tile(label, { testid, title } = {}) {
  const value = h("strong", { class: "tile-value", dataset: testid ? { testid } : {} }, UNKNOWN);
  const unit = h("span", { class: "unit" });
  const note = h("span", { class: "note" });
  return {
    element: h(
      "div",
      { class: "tile", title },
      h("span", { class: "tile-label" }, label),
      h("span", { class: "tile-line" }, value, unit),
      note,
    ),
    /** rate() and duration() have their unit behind the first space: it is set smaller. */
    set(text, { note: noteText = "", level = null, hasUnit = false } = {}) {
      const [number, ...units] = hasUnit ? text.split(" ") : [text];
      setText(value, number);
      setText(unit, units.join(" "));
      setText(note, noteText);
      setAttribute(value, "data-level", level);
    },
  };
}

/** Names and values, side by side: facts({ device: "cpu" }) and set with the same names. */
export function facts(labels) {
  const values = labels.map(() => h("dd", {}, UNKNOWN));
  return {
    element: h(
      "dl",
      { class: "facts" },
      labels.map((label, index) => h("div", {}, h("dt", {}, label), values[index])),
    ),
    set(texts) {
      texts.forEach((text, index) => setText(values[index], text));
    },
  };
}
