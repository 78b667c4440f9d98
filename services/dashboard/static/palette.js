// The colours of lines and bars. base.css has them (Okabe and Ito's, lightened for dark backgrounds), so
// that elements need only a class; charts ask here what they are under the theme of the moment. Where
// there are more lines than colours, a dash pattern tells them apart.

const COLOURS = 6; // --colour-0 to --colour-5 of base.css
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];

let probe;

/** What a colour of the stylesheet, as "--muted", is now: rgb(…). */
export function cssColour(variable) {
  if (!probe) {
    probe = document.createElement("span");
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(${variable})`;
  return getComputedStyle(probe).color;
}

/** `place` is a whole number, or "neutral" for what belongs to nobody. */
export function lineColour(place) {
  return cssColour(place === "neutral" ? "--colour-neutral" : `--colour-${place % COLOURS}`);
}

/** For an element: its `--colour` is then that of the line. */
export function colourClass(place) {
  return place === "neutral" ? "colour-neutral" : `colour-${place % COLOURS}`;
}

export function dashOf(place) {
  return place === "neutral" ? "solid" : DASHES[Math.floor(place / COLOURS) % DASHES.length];
}

/** rgb(1, 2, 3) -> rgba(1, 2, 3, 0.2). */
export function transparent(rgb, opacity) {
  return rgb.replace("rgb(", "rgba(").replace(")", `, ${opacity})`);
}
