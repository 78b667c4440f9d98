// The header that all pages share, and the title of the window.

import { fill, h } from "./dom.js";

/** crumbs: [[text, address or null]], outermost first. */
export function setMasthead(title, crumbs) {
  document.title = title ? `${title} · Repertory` : "Repertory";
  fill(
    document.getElementById("breadcrumb"),
    h(
      "ol",
      {},
      crumbs.map(([text, address], index) =>
        h(
          "li",
          {},
          h(
            address ? "a" : "span",
            { href: address, title: text, "aria-current": index === crumbs.length - 1 ? "page" : null },
            text,
          ),
        ),
      ),
    ),
  );
}
