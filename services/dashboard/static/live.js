// The stream of a run: server-sent events. EventSource reconnects by itself; this notices when it cannot,
// when it has gone silent, and when the tab is hidden for so long that nobody looks.

import { get, runPath, withQuery } from "./api.js";

const HIDDEN_MILLISECONDS = 60_000;
const SILENCE_MILLISECONDS = 30_000; // a beat comes every ten seconds at the latest
const RETRY_MILLISECONDS = 3000;

/**
 * Opens the stream until `signal` aborts.
 * parts: the events wanted, as ["overview", "rows"]
 * on(part, data): called with each
 * onConnection(state): "connecting", "live", "lost" or "resting"
 * onOpen(missed): the stream is there; `missed`: for the second time or later, with a gap in between
 */
export function openLive(run, parts, { on, onConnection, onOpen, signal }) {
  let source = null;
  let retry;
  let rest;
  let heardAt = performance.now();
  let missed = false; // something, since it was last open

  const close = () => {
    source?.close();
    source = null;
    clearTimeout(retry);
  };

  const open = () => {
    close();
    onConnection(missed ? "lost" : "connecting");
    heardAt = performance.now();
    source = new EventSource(withQuery(runPath(run, "live"), { parts }));
    source.onopen = () => {
      heardAt = performance.now();
      onConnection("live");
      onOpen(missed);
      missed = false;
    };
    source.onerror = () => {
      missed = true;
      onConnection("lost");
      // Closed: the server refused. If because we are logged out, this call leads to the login page.
      if (source?.readyState === EventSource.CLOSED) {
        get(runPath(run), {}, signal).catch(() => {});
        clearTimeout(retry);
        retry = setTimeout(open, RETRY_MILLISECONDS);
      }
    };
    source.addEventListener("beat", () => (heardAt = performance.now()));
    for (const part of parts) {
      source.addEventListener(part, (event) => {
        heardAt = performance.now();
        on(part, JSON.parse(event.data));
      });
    }
  };

  const watch = setInterval(() => {
    if (source && !document.hidden && performance.now() - heardAt > SILENCE_MILLISECONDS) {
      missed = true;
      open();
    }
  }, 2000);

  const visibilityChanged = () => {
    clearTimeout(rest);
    if (document.hidden) {
      rest = setTimeout(() => {
        close();
        missed = true;
        onConnection("resting");
      }, HIDDEN_MILLISECONDS);
    } else if (!source) open();
    else heardAt = performance.now(); // a hidden tab's timers are slow, which is no silence
  };
  document.addEventListener("visibilitychange", visibilityChanged, { signal });
  signal.addEventListener("abort", () => {
    close();
    clearInterval(watch);
    clearTimeout(rest);
  });
  open();
}
