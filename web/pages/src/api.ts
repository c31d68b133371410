/** Requests to the front end. Every failure is an ApiError with a sentence for the user. */

import { ownerOf, path, site } from "./site.ts";
import type { Problem } from "./text/problem.ts";

const PATIENCE_MS = 45_000;
/** The front end limits the requests of one user; more would be refused. */
const AT_ONCE = 3;
const BUSY_PAUSE_MS = 400;
const BUSY_TRIES = 5;

export interface RefusalBody {
  code?: unknown;
  error?: unknown;
  advice?: unknown;
  retry?: unknown;
  problems?: unknown;
}

export class ApiError extends Error {
  constructor(
    readonly code: string,
    sentence: string,
    readonly advice: string,
    readonly http: number,
    readonly retry: boolean,
    /** Of each field of what was sent. */
    readonly problems: Problem[] = [],
  ) {
    super(sentence);
  }

  /** Nobody is signed in to this site. */
  get isSignedOut(): boolean {
    return this.http === 401 && !this.code.startsWith("signIn");
  }
}

const text = (value: unknown, other: string): string => (typeof value === "string" ? value : other);

const unreachable = (): ApiError =>
  new ApiError("unreachable", "the site does not answer", "jobs go on; try again", 0, true);

/** The error of an answer that is not of the expected form, as from a proxy. */
export const unreadable = (): ApiError =>
  new ApiError(
    "unreadable",
    "the site sends an answer that this page cannot read",
    "try again; if it stays, reload the page",
    0,
    false,
  );

/** Return a signal that is aborted with the first of these; AbortSignal.any is too new. */
export function anyOf(...signals: AbortSignal[]): AbortSignal {
  const all = new AbortController();
  for (const signal of signals) {
    if (signal.aborted) all.abort(signal.reason);
    signal.addEventListener("abort", () => all.abort(signal.reason), {
      once: true,
      signal: all.signal,
    });
  }
  return all.signal;
}

/** Return the error of a response that is not ok. A proxy may refuse in a form of its own. */
export async function refusal(response: Response): Promise<ApiError> {
  let body: RefusalBody = {};
  try {
    body = ((await response.json()) ?? {}) as RefusalBody;
  } catch {
    // not JSON, so not from the front end
  }
  return new ApiError(
    text(body.code, "unknown"),
    text(body.error, `the site answers with HTTP ${response.status}`),
    text(body.advice, "try again in a moment"),
    response.status,
    typeof body.retry === "boolean" ? body.retry : response.status >= 500,
    Array.isArray(body.problems) ? body.problems.map(problem) : [],
  );
}

const problem = (said: Record<string, unknown>): Problem => ({
  ...(typeof said.path === "string" ? { path: said.path } : {}),
  ...(typeof said.line === "number" ? { line: said.line } : {}),
  problem: text(said.problem, "it is not valid"),
  right: text(said.right, ""),
});

let active = 0;
const queued: (() => void)[] = [];

async function slot<T>(work: () => Promise<T>): Promise<T> {
  if (active >= AT_ONCE) await new Promise<void>((resolve) => queued.push(resolve));
  active += 1;
  try {
    return await work();
  } finally {
    active -= 1;
    queued.shift()?.();
  }
}

const PAGE_DATA = "/page-data/";

/**
 * Return address and body of a request. A request about another user's job names this user, and the
 * supervisor decides whether the signed-in user may send it.
 */
export function addressed(address: string, body: object): [string, object] {
  const { computeJid, id, uid } = body as { computeJid?: unknown; id?: unknown; uid?: unknown };
  const owner = ownerOf(typeof computeJid === "string" ? computeJid : id);
  const isForeign = owner !== undefined && owner !== site.user && uid === undefined;
  if (!isForeign || !address.startsWith(PAGE_DATA) || address.startsWith(`${PAGE_DATA}site/`)) {
    return [address, body];
  }
  return [address.replace(PAGE_DATA, `${PAGE_DATA}site/`), { ...body, uid: owner }];
}

async function send(
  to: string,
  content: object,
  signal?: AbortSignal,
  patienceMs = PATIENCE_MS,
): Promise<Response> {
  const [address, body] = addressed(to, content);
  const patience = AbortSignal.timeout(patienceMs);
  try {
    return await fetch(path(address), {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      credentials: "same-origin",
      signal: signal ? anyOf(signal, patience) : patience,
    });
  } catch {
    if (signal?.aborted) throw signal.reason;
    throw unreachable();
  }
}

/**
 * Send a request once, however long its answer takes: for a sign-in, where a repetition may lock an
 * account.
 */
export async function postOnce<T>(address: string, body: object, patienceMs: number): Promise<T> {
  const response = await send(address, body, undefined, patienceMs);
  if (!response.ok) throw await refusal(response);
  return (await response.json().catch(() => Promise.reject(unreadable()))) as T;
}

/** Get JSON from an address below the path of the blueprint. */
export async function get<T>(address: string, signal?: AbortSignal): Promise<T> {
  return (await getTagged<T>(address, signal)).content;
}

/** The same with the strong ETag of a file, "" if there is none. */
export function getTagged<T>(
  address: string,
  signal?: AbortSignal,
): Promise<{ content: T; tag: string }> {
  return slot(async () => {
    const patience = AbortSignal.timeout(PATIENCE_MS);
    let response: Response;
    try {
      response = await fetch(path(address), {
        credentials: "same-origin",
        signal: signal ? anyOf(signal, patience) : patience,
      });
    } catch {
      if (signal?.aborted) throw signal.reason;
      throw unreachable();
    }
    if (!response.ok) throw await refusal(response);
    const content = (await response.json().catch(() => Promise.reject(unreadable()))) as T;
    const tag = response.headers.get("ETag") ?? "";
    return { content, tag: tag.startsWith('"') ? tag : "" };
  });
}

/** Send a request and return the response. Raises ApiError, or the reason of an aborted signal. */
export function ask(address: string, body: object = {}, signal?: AbortSignal): Promise<Response> {
  return slot(async () => {
    for (let tries = 1; ; tries += 1) {
      const response = await send(address, body, signal);
      if (response.ok) return response;
      const error = await refusal(response);
      if (error.http !== 429 || tries >= BUSY_TRIES) throw error;
      await new Promise((resolve) => setTimeout(resolve, BUSY_PAUSE_MS * tries));
    }
  });
}

export async function post<T>(
  address: string,
  body: object = {},
  signal?: AbortSignal,
): Promise<T> {
  const response = await ask(address, body, signal);
  try {
    return (await response.json()) as T;
  } catch (error) {
    if (signal?.aborted) throw signal.reason;
    throw error instanceof SyntaxError ? unreadable() : unreachable();
  }
}

/** Send a request of the supervisor's interface. */
export const data = <T>(name: string, body: object = {}, signal?: AbortSignal): Promise<T> =>
  post<T>(`/page-data/${name}`, body, signal);

/** Return an id for a request that changes something; the same id makes a repetition harmless. */
export function requestId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
}
