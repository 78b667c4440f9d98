// A table whose cells are changed in place: rows keep their elements, and only what differs is written.
// It sorts by a click on a heading; new values do not move rows under the reader's eyes, new rows do.

import { h, keyed, setAttribute, setText } from "./dom.js";
import { naturalOrder } from "./format.js";

export class DataTable {
  /**
   * columns: [{ key, label, value(row), text(row)?, make(row)?, update(cell, row)?, title?, numeric?, wide?,
   *   fixed?, unseen?, bare? }]
   *   value is what is sorted by; text what is shown (default: the value); make and update are for cells
   *   with elements of their own. Without value, or fixed, a column does not sort. An unseen heading is
   *   only read out; in a card a wide cell has a line of its own, and a bare one no label.
   * keyOf(row), rowProperties(row): what names a row, and attributes that never change
   * sort: [key, descending] at first
   * cards: rows become cards on a narrow screen; "dense" ones have three columns
   * bounded: a long table scrolls within itself
   */
  constructor({
    caption,
    columns,
    keyOf,
    rowProperties,
    rowClass,
    sort = [null, false],
    cards = false,
    bounded = false,
  }) {
    this._columns = columns;
    this._keyOf = keyOf;
    this._rowProperties = rowProperties ?? (() => ({}));
    this._rowClass = rowClass;
    this._sort = sort;
    this._rows = [];
    this._order = new Map(); // key -> place, of the last sorting
    this._body = h("tbody", {});
    this._headings = columns.map((column) => this._heading(column));
    this.element = h(
      "div",
      {
        class: bounded ? "table-box bounded" : "table-box",
        tabindex: bounded ? "0" : null,
        role: bounded ? "region" : null,
        "aria-label": bounded ? caption : null,
      },
      h(
        "table",
        { class: cards === "dense" ? "cards dense" : cards ? "cards" : null },
        h("caption", { class: "unseen" }, caption),
        h("thead", {}, h("tr", {}, this._headings)),
        this._body,
      ),
    );
    this._showSort();
  }

  update(rows) {
    this._rows = rows;
    const keys = rows.map(this._keyOf);
    if (keys.length !== this._order.size || keys.some((key) => !this._order.has(key))) this._arrange();
    const ordered = [...rows].sort((a, b) => this._order.get(this._keyOf(a)) - this._order.get(this._keyOf(b)));
    keyed(
      this._body,
      ordered,
      this._keyOf,
      (row) => this._makeRow(row),
      (element, row) => this._updateRow(element, row),
    );
  }

  _makeRow(row) {
    return h(
      "tr",
      this._rowProperties(row),
      this._columns.map((column) =>
        h(
          "td",
          {
            class: [
              column.numeric && "numeric",
              column.wide && "wide",
              column.bare && "bare",
            ].filter(Boolean).join(" ") || null,
            "data-label": column.label,
          },
          column.make?.(row),
        ),
      ),
    );
  }

  _updateRow(element, row) {
    if (this._rowClass) setAttribute(element, "class", this._rowClass(row));
    this._columns.forEach((column, index) => {
      const cell = element.children[index];
      if (column.update) column.update(cell, row);
      else if (!column.make) setText(cell, column.text ? column.text(row) : String(column.value(row)));
    });
  }

  _heading(column) {
    const properties = { scope: "col", class: column.numeric ? "numeric" : null, title: column.title };
    if (column.unseen) return h("th", properties, h("span", { class: "unseen" }, column.label));
    if (!column.value || column.fixed) return h("th", properties, column.label);
    const button = h(
      "button",
      { type: "button", class: "quiet", dataset: { testid: `sort-${column.key}` } },
      column.label,
    );
    button.addEventListener("click", () => {
      const [key, descending] = this._sort;
      this._sort = [column.key, key === column.key ? !descending : Boolean(column.numeric)];
      this._showSort();
      this._arrange();
      this.update(this._rows);
    });
    return h("th", properties, button);
  }

  _showSort() {
    const [sorted, descending] = this._sort;
    this._columns.forEach((column, index) => {
      setAttribute(
        this._headings[index],
        "aria-sort",
        column.key === sorted ? (descending ? "descending" : "ascending") : null,
      );
    });
  }

  _arrange() {
    const [key, descending] = this._sort;
    const column = this._columns.find((candidate) => candidate.key === key);
    const direction = descending ? -1 : 1;
    const rows = [...this._rows];
    if (column) rows.sort((a, b) => direction * compare(column.value(a), column.value(b)));
    this._order = new Map(rows.map((row, place) => [this._keyOf(row), place]));
  }
}

/** What is not known comes below every number. */
function compare(a, b) {
  if (typeof a === "string" || typeof b === "string") return naturalOrder(a ?? "", b ?? "");
  const [left, right] = [a ?? -Infinity, b ?? -Infinity];
  return left === right ? 0 : left < right ? -1 : 1;
}
