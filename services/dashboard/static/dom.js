// Making and changing elements. Text from the server only ever becomes a text node, so a name that
// looks like markup is shown as it is.

/**
 * An element: h("a", { href: "/", class: "quiet", onclick: go }, "Runs").
 * `dataset` is an object; null, undefined and false leave an attribute or a child out.
 */
export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

/** Replaces what is inside. */
export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/** Writes only what differs: an untouched node costs no layout, and keeps a selection. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

const childrenByKey = new WeakMap(); // parent -> Map of key -> element

/**
 * Makes the children of `parent` match `items` and keeps those that stay: `create(item)` makes an
 * element, `update(element, item)` changes it in place.
 */
export function keyed(parent, items, keyOf, create, update) {
  const before = childrenByKey.get(parent) ?? new Map();
  if (before.size === 0) parent.replaceChildren(); // what stood there in the meantime
  const after = new Map();
  let place = parent.firstElementChild;
  let index = 0;
  for (const item of items) {
    const key = keyOf(item, index++);
    const element = before.get(key) ?? create(item);
    update?.(element, item);
    after.set(key, element);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const [key, element] of before) if (!after.has(key)) element.remove();
  childrenByKey.set(parent, after);
}

/** A sentence where something would be, if there were any. */
export function emptyState(text) {
  return h("p", { class: "empty" }, text);
}

let announcer;

/** Says something to a screen reader that others see anyway. */
export function announce(text) {
  announcer ??= document.getElementById("announcer");
  setText(announcer, text);
}
