// Numbers as people read them: thousands apart, units, as many digits as mean something.
// What is not known is a dash.

export const UNKNOWN = "–";

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

const formats = new Map();

function fixed(value, digits) {
  if (!formats.has(digits)) {
    formats.set(
      digits,
      new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }),
    );
  }
  const text = formats.get(digits).format(value);
  return text.replace("-", "−"); // a minus as wide as a digit
}

export function decimal(value, digits) {
  return known(value) ? fixed(value, digits) : UNKNOWN;
}

export function integer(value) {
  return known(value) ? fixed(Math.round(value), 0) : UNKNOWN;
}

/** A return, a loss, a ratio: three digits or more, always the same number of decimals for one magnitude. */
export function number(value) {
  if (!known(value)) return UNKNOWN;
  const magnitude = Math.abs(value);
  if (magnitude === 0) return "0";
  if (magnitude >= 1e12 || magnitude < 1e-3) return value.toExponential(2).replaceAll("-", "−");
  if (magnitude >= 10_000) return fixed(value, 0);
  if (magnitude >= 100) return fixed(value, 1);
  if (magnitude >= 1) return fixed(value, 2);
  return fixed(value, magnitude >= 0.1 ? 3 : 4);
}

/** rate(1284.2, "steps") is 1,284 steps/s. */
export function rate(value, unit) {
  if (!known(value)) return UNKNOWN;
  const magnitude = Math.abs(value);
  return `${fixed(value, magnitude >= 100 ? 0 : magnitude >= 10 ? 1 : 2)} ${unit}/s`;
}

export function percent(share, digits = 0) {
  return known(share) ? `${fixed(share * 100, digits)} %` : UNKNOWN;
}

export function bytes(size) {
  if (!known(size)) return UNKNOWN;
  let value = size;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    const digits = unit === "B" || value >= 9.95 ? 0 : 1;
    if (Math.abs(value) < 999.5 || unit === "TB") return `${fixed(value, digits)} ${unit}`;
    value /= 1000;
  }
}

/** 0.41 ms, 2.1 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const value = Math.max(0, seconds);
  if (value === 0) return "0 s";
  if (value < 0.9995) return `${fixed(value * 1000, value < 0.01 ? 2 : 0)} ms`;
  if (value < 59.95) return `${fixed(value, value < 9.95 ? 1 : 0)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** Whole seconds, and one unit above a day: it is read at a glance and changes rarely. */
export function ago(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 1.5) return "just now";
  if (seconds < 60) return `${Math.round(seconds)} s ago`;
  if (seconds < 600) return `${duration(seconds)} ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${duration(seconds)} ago`;
  const days = Math.floor(seconds / 86_400);
  return days === 1 ? "1 day ago" : `${integer(days)} days ago`;
}

export function clockTime(epochSeconds) {
  if (!known(epochSeconds)) return UNKNOWN;
  return new Date(epochSeconds * 1000).toLocaleString("sv-SE"); // 2026-11-17 10:04:44
}

/** "1 actor", "3 actors". */
export function count(value, noun) {
  return `${integer(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** policy_loss -> policy loss. */
export function words(name) {
  return name.replaceAll("_", " ");
}

/** worker-2 before worker-10. */
export const naturalOrder = new Intl.Collator("en", { numeric: true }).compare;
