// The server's clock, and "… ago" that goes on counting. The browser may be on another machine whose
// clock is off: every answer has a Date, and the difference is allowed for.

import { h, setText } from "./dom.js";
import { UNKNOWN, ago, clockTime } from "./format.js";

let aheadSeconds = 0; // of the server; a Date has whole seconds, so less than two means nothing

export function noteServerDate(header) {
  const server = Date.parse(header ?? "");
  if (Number.isNaN(server)) return;
  const difference = (server - Date.now()) / 1000;
  aheadSeconds = Math.abs(difference) > 2 ? difference : 0;
}

export function serverNow() {
  return Date.now() / 1000 + aheadSeconds;
}

/** A <time> that says how long ago something was, and exactly when if one points at it. */
export function timeAgo(epochSeconds) {
  return setTimeAgo(h("time", {}), epochSeconds);
}

export function setTimeAgo(element, epochSeconds) {
  if (epochSeconds === null || epochSeconds === undefined) {
    delete element.dataset.at;
    setText(element, UNKNOWN);
  } else if (element.dataset.at !== String(epochSeconds)) {
    element.dataset.at = epochSeconds;
    element.dateTime = new Date(epochSeconds * 1000).toISOString();
    element.title = clockTime(epochSeconds);
  }
  tick(element);
  return element;
}

function tick(element) {
  if (element.dataset.at) setText(element, ago(serverNow() - Number(element.dataset.at)));
}

setInterval(() => {
  if (!document.hidden) document.querySelectorAll("time[data-at]").forEach(tick);
}, 1000);
