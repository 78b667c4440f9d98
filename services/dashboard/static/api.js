// The JSON of the server (schemas.py says what it looks like). Every call has a deadline; whoever is
// not logged in is sent to the login page; every other error is an ApiError with the server's words.

import { noteServerDate } from "./clock.js";

const READ_TIMEOUT_MILLISECONDS = 20_000;
const ORDER_TIMEOUT_MILLISECONDS = 120_000; // a checkpoint can take a while

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status; // 0: no answer at all
  }
}

/** runPath("a/b", "series") is /api/runs/a%2Fb/series. */
export function runPath(run, ...rest) {
  return ["/api/runs", ...[run, ...rest].map(encodeURIComponent)].join("/");
}

/** withQuery("/x", { names: ["a", "b"], axis: "time" }); null leaves a parameter out. */
export function withQuery(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined) query.append(name, one);
    }
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

export function get(path, parameters = {}, signal = undefined) {
  return call(
    withQuery(path, parameters),
    { headers: { accept: "application/json" } },
    READ_TIMEOUT_MILLISECONDS,
    signal,
  );
}

/** An Order, to a run; the answer is an Obeyed. */
export function order(run, body) {
  const request = {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  };
  return call(runPath(run, "commands"), request, ORDER_TIMEOUT_MILLISECONDS);
}

async function call(address, request, timeoutMilliseconds, signal) {
  const deadline = AbortSignal.timeout(timeoutMilliseconds);
  let response;
  let body;
  try {
    response = await fetch(address, {
      ...request,
      credentials: "same-origin",
      signal: signal ? AbortSignal.any([signal, deadline]) : deadline,
    });
    noteServerDate(response.headers.get("date"));
    if (response.status === 401) {
      location.assign("/login");
      throw new ApiError("You are logged out.", 401);
    }
    body = await response.json().catch((error) => {
      if (error.name === "SyntaxError") return null; // a proxy's page, not ours
      throw error;
    });
  } catch (error) {
    if (error instanceof ApiError || signal?.aborted) throw error;
    const within = deadline.aborted ? ` within ${timeoutMilliseconds / 1000} s` : "";
    throw new ApiError(`The server does not answer${within}.`, 0);
  }
  if (!response.ok) {
    throw new ApiError(body?.error ?? `The server answered ${response.status}.`, response.status);
  }
  if (body === null) throw new ApiError("The server's answer is not JSON.", response.status);
  return body;
}

/** True of the error of a call that its own page has given up. */
export function isAbort(error) {
  return error?.name === "AbortError";
}
