// Light and dark. The system decides until somebody presses the switch; pressing it back to what the
// system says forgets the choice. early_theme.js sets a remembered one before the first paint.

import { setAttribute, setText } from "./dom.js";

const KEY = "repertory-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : system.matches;
}

/** Calls back whenever light and dark change places, until `signal` aborts. */
export function onThemeChange(callback, signal) {
  listeners.add(callback);
  signal.addEventListener("abort", () => listeners.delete(callback));
}

export function startThemeSwitch(button) {
  const changed = () => {
    setText(button, isDark() ? "Light" : "Dark");
    setAttribute(button, "aria-label", isDark() ? "Light theme" : "Dark theme");
    for (const callback of listeners) callback();
  };
  button.addEventListener("click", () => {
    choose(isDark() ? "light" : "dark");
    changed();
  });
  system.addEventListener("change", changed);
  changed();
}

function choose(theme) {
  const followsSystem = (theme === "dark") === system.matches;
  if (followsSystem) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (followsSystem) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // Storage can be forbidden: then the choice lasts until the page is left.
  }
}
