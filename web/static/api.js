// Requests to the front end, all of them. Addresses are relative to where this file was loaded from, so that the blueprint
// may live below any prefix. What is refused becomes an ApiError with a sentence and an advice; nothing else is ever shown.

const BASE = new URL("../", import.meta.url);
/** What a request may take before the page says that nobody answers, milliseconds. */
const PATIENCE_MS = 45000;

/** A refusal. sentence and advice are for a person; code and http are for the page. */
export class ApiError extends Error {
  constructor(code, sentence, advice, http, signIn = null) {
    super(sentence);
    /** Address of the page on which people sign in at this site, if it has one. */
    this.signIn = signIn;
    this.code = code;
    this.advice = advice;
    this.http = http;
  }

  /** The site itself could not be asked; what was asked for does not matter. */
  get isUnreachable() {
    return this.http === 0 || this.code === "supervisorUnavailable" || (this.code === "unknown" && this.http >= 502 && this.http <= 504);
  }

  /** Nobody is signed in to this site; to sign in to a cluster is another matter. */
  get isNobody() {
    return this.http === 401 && !this.code.startsWith("signIn");
  }
}

export const address = (path, query = {}) => {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query)) url.searchParams.append(name, value);
  return url;
};

const unreachable = () => new ApiError("unreachable", "the site does not answer", "what runs, runs on; the page keeps trying", 0);

/** The answer, read as `read` does it. Raises ApiError where there is none, or only a part of it, or a refusal. */
async function send(path, read, options) {
  let response;
  try {
    response = await fetch(address(path), { signal: AbortSignal.timeout(PATIENCE_MS), credentials: "same-origin", ...options });
  } catch {
    throw unreachable();
  }
  if (!response.ok) throw await refusal(response);
  try {
    return await read(response);
  } catch (error) {
    // an answer that is whole and makes no sense is a mistake
    throw error instanceof SyntaxError ? error : unreachable();
  }
}

/** Also what stands between the page and the front end may refuse, in a form of its own. */
export async function refusal(response) {
  let said = {};
  try {
    said = (await response.json()) ?? {};
  } catch {
    // no JSON, so none of ours: its number has to do
  }
  const sentence = typeof said.error === "string" ? said.error : `the site answers with HTTP ${response.status}`;
  return new ApiError(said.code ?? "unknown", sentence, said.advice ?? "try again in a moment", response.status, said.signIn);
}

const json = (response) => response.json();

export const get = (path) => send(path, json, {});

/** {headers, bytes} of a file, which may take as long as it takes. */
export const getBytes = (path) =>
  send(path, async (response) => ({ headers: response.headers, bytes: new Uint8Array(await response.arrayBuffer()) }), { signal: null });

export const post = (path, body = {}, patienceMs = PATIENCE_MS) => {
  const headers = { "Content-Type": "application/json" };
  const options = { method: "POST", headers, body: JSON.stringify(body), signal: AbortSignal.timeout(patienceMs) };
  return send(path, json, options);
};

/** A random word for ids; the letters and digits are those that ids are made of. */
export function randomWord(length) {
  const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  let word = "";
  while (word.length < length) {
    for (const byte of crypto.getRandomValues(new Uint8Array(length))) {
      if (byte < 248 && word.length < length) word += letters[byte % 62];
    }
  }
  return word;
}
