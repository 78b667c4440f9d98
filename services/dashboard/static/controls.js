// Steering a run. Every control asks first, in a dialog that says in one sentence what will happen; the
// dialog then shows that the order is under way, and stays with the reason where it is refused.

import { order } from "./api.js";
import { h, setText } from "./dom.js";
import { integer, words } from "./format.js";

/**
 * Asks, sends, tells.
 * title, sentence: what will happen
 * action: the word on the button
 * fields: elements with inputs, shown below the sentence
 * makeOrder(): the Order, read from the fields when it is sent
 */
export function askAndSend({ run, title, sentence, action, danger = false, fields = [], makeOrder }) {
  const status = h("p", { class: "dialog-status", role: "status" });
  const yes = h(
    "button",
    { type: "submit", class: danger ? "danger" : "primary", dataset: { testid: "confirm-yes" } },
    action,
  );
  const no = h(
    "button",
    { type: "button", dataset: { testid: "confirm-no" }, onclick: () => dialog.close() },
    "Cancel",
  );
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: "confirm-title" }, title),
    h("p", {}, sentence),
    fields,
    status,
    h("div", { class: "dialog-buttons" }, no, yes),
  );
  const dialog = h("dialog", { "aria-labelledby": "confirm-title", dataset: { testid: "confirm" } }, form);

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    yes.disabled = true;
    status.dataset.level = "";
    setText(status, "Sent; waiting for the run to answer…");
    try {
      const obeyed = await order(run, makeOrder());
      dialog.close();
      notify(`${title}: done.${resultWords(obeyed.result)}`, "good");
    } catch (error) {
      yes.disabled = false;
      setText(yes, "Try again");
      setText(no, "Close");
      status.dataset.level = "bad";
      setText(status, error.message);
      if (!dialog.open) notify(`${title}: ${error.message}`, "bad");
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal(); // the browser keeps the focus inside, and gives it back to the button
  (fields.length ? form.querySelector("input, select") : yes).focus();
}

/** What the run answered, in words: { env_steps: 400 } -> " env steps 400". */
function resultWords(result) {
  const parts = Object.entries(result)
    .filter(([, value]) => ["string", "number"].includes(typeof value))
    .map(([name, value]) => `${words(name)} ${typeof value === "number" ? integer(value) : value}`);
  return parts.length ? ` ${parts.join(", ")}.` : "";
}

const NOTICE_MILLISECONDS = 8000;

/** A line at the edge of the window that goes away by itself. */
export function notify(text, level = "plain") {
  const notice = h("div", { class: "notice", dataset: { testid: "notice", level } }, h("span", {}, text));
  notice.append(
    h(
      "button",
      { type: "button", class: "quiet", "aria-label": "Dismiss", onclick: () => notice.remove() },
      "✕",
    ),
  );
  document.getElementById("notices").append(notice);
  setTimeout(() => notice.remove(), NOTICE_MILLISECONDS);
}

/** A control's button: controlButton({ testid: "pause", label: "Pause", onclick }). */
export function controlButton({ testid, label, title, danger = false, onclick }) {
  return h(
    "button",
    { type: "button", class: danger ? "danger-quiet" : null, title, dataset: { testid }, onclick },
    label,
  );
}

/** The orders that need nothing but their name. */
const SIMPLE_ORDERS = {
  pause: {
    title: "Pause the run",
    action: "Pause",
    sentence: "Acting and learning are held where they are until somebody resumes the run; nothing is lost.",
  },
  resume: {
    title: "Resume the run",
    action: "Resume",
    sentence: "Acting and learning go on from where they were held.",
  },
  checkpoint: {
    title: "Write a checkpoint",
    action: "Write it",
    sentence: "Learners, replay and counters are written to disk now; the run goes on meanwhile.",
  },
  stop: {
    title: "Stop the run",
    action: "Stop",
    danger: true,
    sentence: "The run writes a checkpoint and ends all its processes; repertory resume lets it go on later.",
  },
};

export function askSimple(run, name) {
  askAndSend({ run, ...SIMPLE_ORDERS[name], makeOrder: () => ({ name }) });
}
