// Small bars: how full something is, who has which part of a whole, where a value is between two limits.

import { h, keyed, setAttribute, setText } from "./dom.js";
import { percent } from "./format.js";
import { colourClass } from "./palette.js";

/** A bar from 0 to 1, with words beside it. */
export function shareBar(label) {
  const bar = h("span", { class: "fill" });
  const words = h("span", { class: "words" });
  const element = h("div", { class: "meter", role: "img" }, h("span", { class: "track" }, bar), words);
  return {
    element,
    set(share, text = percent(share)) {
      bar.style.inlineSize = `${Math.min(1, Math.max(0, share ?? 0)) * 100}%`;
      setText(words, text);
      setAttribute(element, "aria-label", `${label}: ${text}`);
    },
  };
}

/** One bar of many parts, and a legend: parts are { name, share, text }. `placeOf(name)` is a colour's. */
export function partsBar(label, placeOf) {
  const bar = h("div", { class: "parts", role: "img" });
  const legend = h("ul", { class: "parts-legend" });
  const element = h("div", { class: "parts-box" }, bar, legend);
  return {
    element,
    set(parts) {
      setAttribute(
        bar,
        "aria-label",
        `${label}: ${parts.map((part) => `${part.name} ${percent(part.share)}`).join(", ")}`,
      );
      keyed(
        bar,
        parts,
        (part) => part.name,
        (part) => h("span", { class: colourClass(placeOf(part.name)), title: part.name }),
        (span, part) => (span.style.inlineSize = `${part.share * 100}%`),
      );
      keyed(
        legend,
        parts,
        (part) => part.name,
        (part) => h(
          "li",
          {},
          h("span", { class: `swatch block ${colourClass(placeOf(part.name))}`, "aria-hidden": "true" }),
          h("span", { class: "name" }, part.name),
          h("span", { class: "value" }),
        ),
        (line, part) => setText(
          line.lastChild,
          `${percent(part.share, 1)}${part.text ? ` · ${part.text}` : ""}`,
        ),
      );
    },
  };
}

/** A needle between -limit and +limit. */
export function gauge({ label, low, high }) {
  const needle = h("span", { class: "needle" });
  const words = h("p", { class: "note" });
  const track = h("div", { class: "gauge", role: "img" }, h("span", { class: "middle" }), needle);
  const element = h(
    "div",
    {},
    track,
    h("div", { class: "gauge-ends", "aria-hidden": "true" }, h("span", {}, low), h("span", {}, high)),
    words,
  );
  return {
    element,
    set(value, limit, text) {
      const place = Math.min(1, Math.max(-1, value / limit));
      needle.style.insetInlineStart = `${50 + 50 * place}%`;
      needle.classList.toggle("near", Math.abs(place) > 0.9);
      setText(words, text);
      setAttribute(track, "aria-label", `${label}: ${text}`);
    },
  };
}
