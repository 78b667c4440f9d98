// The replay's limiter in words: who is ahead of whom, and who is held because of it.

import { duration, integer, number } from "./format.js";

/** Where a surplus is within its buffer; positive: samples are owed for what was inserted. */
export function surplusWords(surplus, buffer) {
  const ahead = `is ${integer(Math.abs(surplus))} samples ahead of ${integer(buffer)} allowed`;
  if (surplus > 0.9 * buffer) return `Inserting ${ahead}: actors wait, or soon will.`;
  if (surplus < -0.9 * buffer) return `Sampling ${ahead}: learners wait, or soon will.`;
  if (surplus === 0) return "Inserting and sampling are level.";
  return `${surplus > 0 ? "Inserting" : "Sampling"} ${ahead}: nobody needs to wait.`;
}

export function limiterWords(table) {
  const least = table.size < table.min_size
    ? `Sampling waits until ${integer(table.min_size)} items are in: ${integer(table.size)} are.`
    : `Sampling began at ${integer(table.min_size)} items.`;
  if (table.readers.length) return `${least} Each learner has a ratio of its own.`;
  return table.samples_per_insert === null
    ? `${least} No ratio between samples and inserts is kept.`
    : `${least} Each insert allows ${number(table.samples_per_insert)} samples.`;
}

export function readerWords(reader) {
  const standing = reader.surplus > 0
    ? `owes ${integer(reader.surplus)} samples`
    : reader.surplus < 0
    ? `is ${integer(-reader.surplus)} samples ahead`
    : "is level";
  const held = reader.held_inserts
    ? `; ${reader.held_inserts} ${reader.held_inserts === 1 ? "insert waits" : "inserts wait"} for it`
    : "";
  const waits = reader.waiting_samples ? "; it waits for inserts" : "";
  return `${number(reader.samples_per_insert)} samples per insert; ${standing}${waits}${held}.`;
}

/** Who is held at this moment, a line for each learner that they wait for or that waits itself. */
export function heldWords(shards) {
  const tables = shards.flatMap((shard) => shard.tables);
  const lines = [];
  for (const policy of new Set(tables.flatMap((table) => table.readers.map((reader) => reader.policy)))) {
    const readers = tables.flatMap((table) => table.readers.filter((reader) => reader.policy === policy));
    const owed = sum(readers.map((reader) => reader.surplus));
    const held = sum(readers.map((reader) => reader.held_inserts));
    const waiting = sum(readers.map((reader) => reader.waiting_samples));
    if (held) lines.push(`${held === 1 ? "An insert waits" : `${integer(held)} inserts wait`} for ${policy}, which owes ${integer(owed)} samples.`);
    if (waiting) lines.push(`${policy} waits for new data: it is ${integer(-owed)} samples ahead.`);
  }
  // Tables of one learner alone, as those of on-policy ones.
  const others = tables.filter((table) => !table.readers.length && table.blocked.length);
  for (const name of new Set(others.map((table) => table.name))) lines.push(`${name} waits for its next round.`);
  return lines;
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

export function waitingWords(waiting) {
  const caller = waiting.caller.split("@")[0];
  return `${caller} has waited ${duration(waiting.seconds)} to ${waiting.operation}: ${waiting.reason}`;
}
