// Whether what is on the screen is fresh: the few words in the header, and the page dimmed when it is not.

import { announce, setText } from "./dom.js";

const WORDS = {
  none: "",
  connecting: "Connecting…",
  live: "Live",
  connected: "Connected", // the run is not heard of, the server is
  record: "Record of an ended run",
  polling: "Up to date",
  lost: "Connection lost, trying again…",
  resting: "Resting while hidden",
};

let shown = "none";

export function showConnection(state) {
  const element = document.getElementById("connection");
  setText(element, WORDS[state]);
  element.dataset.state = state;
  document.body.classList.toggle("stale", state === "lost");
  if (state === "lost" && shown !== "lost") announce("Connection lost, trying again.");
  if (state !== "lost" && shown === "lost") announce("The connection is back.");
  shown = state;
}
