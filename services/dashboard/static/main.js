// Where the page begins: the routes, and which page module shows which.

import { emptyState, fill } from "./dom.js";
import { showConnection } from "./connection.js";
import { setMasthead } from "./masthead.js";
import { loadPlotly } from "./plotting.js";
import { Router } from "./router.js";
import { RunFrame } from "./run_frame.js";
import { startThemeSwitch } from "./theme.js";
import * as actors from "./pages/actors.js";
import * as compare from "./pages/compare.js";
import * as director from "./pages/director.js";
import * as learners from "./pages/learners.js";
import * as overview from "./pages/overview.js";
import * as replay from "./pages/replay.js";
import * as runs from "./pages/runs.js";
import * as system from "./pages/system.js";

const RUN_PAGES = { overview, learners, director, replay, actors, system };

const root = document.getElementById("main");
let frame = null; // of the run that is shown
let plainPage = null; // AbortController of a page that is not a run's
let hasShown = false; // a page, since the document was loaded

function leave() {
  plainPage?.abort();
  frame?.close();
  frame = null;
  showConnection("none");
  scrollTo(0, 0);
}

/** Whoever follows a link goes on reading there; a page that was just loaded begins at its top. */
function moveFocus() {
  if (hasShown) root.focus({ preventScroll: true });
  hasShown = true;
}

function showPlain(page) {
  return (_parts, query) => {
    leave();
    plainPage = new AbortController();
    fill(root);
    page.show(root, { query, signal: plainPage.signal, go: (address) => router.go(address) });
    moveFocus();
  };
}

function showRun([run, page = "overview"]) {
  if (frame?.run !== run) {
    leave();
    plainPage = null;
    frame = new RunFrame(run, RUN_PAGES, root);
    moveFocus();
  }
  frame.show(page);
}

function showNothing() {
  leave();
  setMasthead("Not found", [["Runs", "/"]]);
  fill(root, emptyState("There is no such page."));
}

startThemeSwitch(document.getElementById("theme"));
const router = new Router([
  [/^\/$/, showPlain(runs)],
  [/^\/compare\/?$/, showPlain(compare)],
  [/^\/runs\/([^/]+)(?:\/([^/]+))?\/?$/, showRun],
  [/^\/(?!static\/|api\/|login|logout)/, showNothing],
]);

// By far the largest file. Where there will be charts it is fetched at once, beside what they show; whoever
// reads the list will open a run, and by then it shall be there.
setTimeout(() => loadPlotly().catch(() => {}), location.pathname === "/" ? 500 : 0);
