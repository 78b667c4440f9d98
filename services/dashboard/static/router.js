// Which page an address is. Links stay ordinary links: clicks on our own are taken over, so that moving
// about loads nothing anew, and everything else about them works as people expect.

/** routes: [[pattern, show(match, url)]]; the last one that is no pattern but null takes the rest. */
export class Router {
  constructor(routes) {
    this._routes = routes;
    document.addEventListener("click", (event) => this._clicked(event));
    this._shown = null; // the address of the page that is there
    addEventListener("popstate", () => {
      if (here() !== this._shown) this._show(); // a move to an anchor is none between pages
    });
    this._show();
  }

  go(address) {
    if (address === here()) return;
    history.pushState(null, "", address);
    this._show();
  }

  _clicked(event) {
    const link = event.target.closest?.("a[href]");
    if (!link || event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    if (link.getAttribute("href").startsWith("#") || !this._match(link.pathname)) return;
    event.preventDefault();
    this.go(link.pathname + link.search);
  }

  _match(path) {
    for (const [pattern, show] of this._routes) {
      const match = pattern.exec(path);
      if (match) return { match, show };
    }
    return null;
  }

  _show() {
    this._shown = here();
    const found = this._match(location.pathname);
    found?.show(
      found.match.slice(1).map((part) => part && decodeURIComponent(part)),
      new URLSearchParams(location.search),
    );
  }
}

function here() {
  return location.pathname + location.search;
}

export function runAddress(run, page = "overview") {
  const base = `/runs/${encodeURIComponent(run)}`;
  return page === "overview" ? base : `${base}/${page}`;
}
