// The whole record of a run, by pages and by level: what the system page has.

import { get, runPath } from "./api.js";
import { notify } from "./controls.js";
import { h } from "./dom.js";
import { EventList } from "./event_list.js";

const EVENTS_AT_ONCE = 100;

/** context: as a page of a run has it. */
export async function eventCard({ run, signal, on, onOpen }) {
  const list = new EventList({ empty: "No event like that among those loaded." });
  const level = h(
    "select",
    { id: "event-level", dataset: { testid: "event-level" }, onchange: () => list.showLevel(level.value) },
    h("option", { value: "all" }, "all"),
    h("option", { value: "notable" }, "all but plain ones"),
    h("option", { value: "bad" }, "warnings and worse"),
  );
  const older = h("button", { type: "button", dataset: { testid: "older" } }, "Load older");
  const fetchEvents = async (parameters) => (await get(runPath(run, "events"), parameters, signal)).events;
  const showOlder = (isMore) => {
    older.disabled = !isMore || list.oldest === null || list.oldest <= 1;
    older.textContent = older.disabled ? "These are all" : "Load older";
  };
  const loadOlder = async () => {
    older.disabled = true;
    const before = list.oldest; // numbers begin at 1 and have no gaps
    const after = Math.max(0, before - 1 - EVENTS_AT_ONCE);
    try {
      const events = await fetchEvents({ after, limit: before - 1 - after });
      list.add(events);
      showOlder(list.oldest < before);
    } catch (error) {
      older.disabled = false;
      notify(error.message, "bad");
    }
  };
  const loadNewest = async () => {
    list.add(await fetchEvents({ limit: EVENTS_AT_ONCE }));
    showOlder(true);
  };
  older.addEventListener("click", loadOlder);
  on("events", (news) => list.add(news.events));
  onOpen(() => loadNewest().catch(() => {}));
  await loadNewest();
  return h(
    "section",
    { class: "card" },
    h(
      "div",
      { class: "section-head" },
      h("h2", {}, "Events"),
      h("label", { for: "event-level" }, "Show"),
      level,
    ),
    h("div", { class: "event-scroll", tabindex: "0", role: "region", "aria-label": "Events" }, list.element),
    older,
  );
}
