// The remembered theme, before the first paint. Without one the stylesheet follows the system.
// theme.js has the switch; the key is the same there.
try {
  const remembered = localStorage.getItem("repertory-theme");
  if (remembered === "light" || remembered === "dark") document.documentElement.dataset.theme = remembered;
} catch {
  // Storage can be forbidden: then the system decides.
}
