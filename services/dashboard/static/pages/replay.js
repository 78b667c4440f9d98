// The replay: what its shards hold, how fast they answer, who is ahead, who waits, whose experience it is.

import { askAndSend, controlButton } from "../controls.js";
import { DataTable } from "../data_table.js";
import { emptyState, fill, h, keyed, setAttribute, setText } from "../dom.js";
import { facts } from "../facts.js";
import { ago, bytes, duration, integer, number, percent, rate } from "../format.js";
import { gauge, partsBar, shareBar } from "../meter.js";
import { colourClass } from "../palette.js";
import { heldWords, limiterWords, readerWords, surplusWords, waitingWords } from "../replay_words.js";
import { isAlive } from "../run_state.js";

export const title = "Replay";
export const parts = ["rows", "replay"];

const SILENCE_SECONDS = 15;

export function show(panel, context) {
  const limiter = controlButton({
    testid: "limiter",
    label: "Change the limiter",
    onclick: () => askForLimiter(context),
  });
  const held = h("ul", { class: "holdups", dataset: { testid: "blocked" }, "aria-label": "Who waits" });
  const calls = h("ul", { class: "plain-list note" });
  const everyCall = h("details", {}, h("summary", {}, "Each call that waits, and why"), calls);
  const nothing = emptyState("Loading…");
  const mix = partsBar("Whose experience it is", context.placeOf);
  const mixSection = h(
    "section",
    { class: "card", dataset: { testid: "provenance" } },
    h("h2", {}, "Whose experience it is"),
    mix.element,
  );
  const shards = h("div", { class: "shards" });
  const size = context.feed.chart({
    key: "replay-size",
    title: "Items",
    lines: [{ metric: "replay/size", label: "items", place: 0 }],
  });
  const sizeBytes = context.feed.chart({
    key: "replay-bytes",
    title: "Size in bytes",
    lines: [{ metric: "replay/size_bytes", label: "bytes", place: 1 }],
  });
  fill(
    panel,
    h("div", { class: "section-head" }, h("h2", {}, "Limiter"), limiter),
    held,
    everyCall,
    nothing,
    mixSection,
    shards,
    h("div", { class: "section-head" }, h("h2", {}, "Over time"), context.feed.axisSwitch()),
    h("div", { class: "charts" }, size.element, sizeBytes.element),
  );

  return context.watch("replay", (view) => {
    const { run, ratios } = context.overview();
    limiter.hidden = !run.steerable || ratios.length === 0;
    nothing.hidden = view.shards.length > 0;
    setText(nothing, whyNoShards(run));
    showHeld(held, view.shards);
    showBlocked(everyCall, calls, view.shards);
    mixSection.hidden = view.provenance.length === 0;
    mix.set(
      view.provenance.map(
        ({ policy, share, items }) => ({ name: policy, share, text: `${integer(items)} items` }),
      ),
    );
    keyed(
      shards,
      view.shards,
      (shard) => shard.name,
      (shard) => makeShard(shard, context),
      (element, shard) => element.show(shard),
    );
  });
}

function whyNoShards(run) {
  if (!isAlive(run.state)) return "This run has ended, and its shards with it.";
  if (!run.distributed) return "This run keeps its replay in its own process; it has no shards to look into.";
  return "No shard has been heard of yet.";
}

function showHeld(list, shards) {
  const held = heldWords(shards);
  const lines = held.length
    ? held.map((text) => ["notice", "i", text])
    : shards.length ? [["fine", "✓", "Nobody waits for the limiter."]] : [];
  list.hidden = lines.length === 0;
  keyed(
    list,
    lines,
    (_line, index) => index,
    () => h("li", {}, h("span", { class: "sign", "aria-hidden": "true" }), h("span", {})),
    (item, [level, sign, text]) => {
      setAttribute(item, "data-level", level);
      setText(item.firstChild, sign);
      setText(item.lastChild, text);
    },
  );
}

// Each call by itself, with the server's own reason: for those who want to know.
function showBlocked(box, list, shards) {
  const waiting = shards.flatMap((shard) => shard.tables.flatMap((table) => table.blocked));
  box.hidden = waiting.length === 0;
  keyed(
    list,
    waiting,
    (_one, index) => index,
    () => h("li", {}),
    (item, one) => setText(item, waitingWords(one)),
  );
}

function makeShard(shard, context) {
  const heard = h("span", { class: "note" });
  const list = facts(["Inserts", "Samples", "Memory", "Host"]);
  const tables = h("div", { class: "shard-tables" });
  const requests = requestTable();
  const element = h(
    "section",
    { class: "card", dataset: { testid: "shard", name: shard.name } },
    h("div", { class: "section-head" }, h("h2", {}, shard.name), heard),
    list.element,
    tables,
    h("details", {}, h("summary", {}, "How fast it answers"), requests.element),
  );
  element.show = (now) => {
    const silent = now.heard_seconds > SILENCE_SECONDS;
    setText(heard, silent ? `Not heard for ${duration(now.heard_seconds)}` : `heard ${ago(now.heard_seconds)}`);
    setAttribute(heard, "data-level", silent ? "warning" : null);
    list.set([
      rate(now.insert_rate, "items"),
      rate(now.sample_rate, "items"),
      bytes(now.memory_bytes),
      now.host,
    ]);
    keyed(
      tables,
      now.tables,
      (table) => table.name,
      (table) => makeTable(table, context),
      (box, table) => box.show(table),
    );
    requests.update(now.requests);
  };
  return element;
}

function makeTable(table, { placeOf }) {
  const fullness = shareBar("Filled");
  const list = facts([
    "Size",
    "Oldest",
    "Newest",
    "Inserted",
    "Sampled",
    "Evicted",
    "Inserts waited",
    "Samples waited",
  ]);
  const words = h("p", { class: "note" });
  const surplus = gauge({ label: "Surplus", low: "sampling ahead", high: "inserting ahead" });
  const readers = h("ul", { class: "plain-list" });
  const box = h(
    "div",
    { class: "shard-table" },
    h("h3", {}, `Table ${table.name}`),
    fullness.element,
    list.element,
    words,
    surplus.element,
    readers,
  );
  box.show = (now) => {
    fullness.set(
      now.capacity ? now.size / now.capacity : 0,
      `${integer(now.size)} of ${integer(now.capacity)} items, ${percent(now.capacity ? now.size / now.capacity : 0)}`,
    );
    list.set([
      bytes(now.size_bytes),
      now.oldest_seconds === null ? "–" : `${duration(now.oldest_seconds)} old`,
      now.newest_seconds === null ? "–" : `${duration(now.newest_seconds)} old`,
      integer(now.inserted),
      integer(now.sampled),
      integer(now.evicted),
      duration(now.insert_wait_seconds),
      duration(now.sample_wait_seconds),
    ]);
    setText(words, limiterWords(now));
    surplus.element.hidden = !now.error_buffer;
    if (now.error_buffer) {
      surplus.set(now.surplus, now.error_buffer, surplusWords(now.surplus, now.error_buffer));
    }
    keyed(
      readers,
      now.readers,
      (reader) => reader.policy,
      (reader) => h(
        "li",
        {},
        h("span", { class: `swatch block ${colourClass(placeOf(reader.policy))}`, "aria-hidden": "true" }),
        h("strong", { class: "clip", title: reader.policy }, reader.policy),
        h("span", { class: "note" }),
      ),
      (line, reader) => setText(line.lastChild, readerWords(reader)),
    );
  };
  return box;
}

function requestTable() {
  return new DataTable({
    caption: "Request times",
    keyOf: (request) => request.operation,
    columns: [
      { key: "operation", label: "Operation", fixed: true, value: (request) => request.operation },
      {
        key: "per_second",
        label: "Per second",
        numeric: true,
        fixed: true,
        value: (request) => request.per_second,
        text: (request) => number(request.per_second),
      },
      {
        key: "p50",
        label: "Half take less than",
        numeric: true,
        fixed: true,
        value: (request) => request.p50_seconds,
        text: (request) => duration(request.p50_seconds),
      },
      {
        key: "p99",
        label: "99 % less than",
        numeric: true,
        fixed: true,
        value: (request) => request.p99_seconds,
        text: (request) => duration(request.p99_seconds),
      },
      {
        key: "count",
        label: "Requests",
        numeric: true,
        fixed: true,
        value: (request) => request.count,
        text: (request) => integer(request.count),
      },
    ],
  });
}

function askForLimiter(context) {
  const { ratios } = context.overview();
  const learner = h(
    "select",
    { id: "limiter-learner", dataset: { testid: "limiter-learner" } },
    ratios.map((ratio) => h("option", { value: ratio.learner }, ratio.learner)),
  );
  const value = h("input", {
    id: "limiter-value",
    type: "number",
    min: "0.000001",
    max: "1000",
    step: "any",
    required: true,
    dataset: { testid: "limiter-value" },
  });
  const present = () => ratios.find((ratio) => ratio.learner === learner.value);
  const showPresent = () => (value.value = String(Number(present().target.toPrecision(6))));
  learner.addEventListener("change", showPresent);
  showPresent();
  askAndSend({
    run: context.run,
    title: "Change the limiter",
    action: "Change it",
    sentence:
      "From now on the learner makes so many gradient updates for each environment step; " +
      "acting waits for it where it must.",
    fields: [
      h("div", { class: "field" }, h("label", { for: "limiter-learner" }, "Learner"), learner),
      h("div", { class: "field" }, h("label", { for: "limiter-value" }, "Updates per step"), value),
    ],
    makeOrder: () => ({ name: "limiter", policy: learner.value, updates_per_step: Number(value.value) }),
  });
}
