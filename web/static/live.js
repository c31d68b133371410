// The stream of news: one for the page, read by hand because a ticket must go in a header. It is opened anew, with a fresh ticket
// and the id of the last event, whenever it ends; while it is not open the page asks (see runs.js). Knows nothing about runs.

import { ApiError, address, post, refusal } from "./api.js";

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 20000;
/** There is a sign of life every 15 s; after so long without one the stream is dead, whatever the browser believes. */
const SILENCE_MS = 40000;

/**
 * query(): what to listen to, asked at each opening. onEvent(name, data), onLink("live" | "asking" | "lost", ApiError?).
 * Returns {reopen, close}; reopen(false) forgets the position, for when other things are listened to.
 */
export function openLive({ query, onEvent, onLink }) {
  let lastId = "";
  let pause = FIRST_PAUSE_MS;
  let current = new AbortController();
  let closed = false;
  let wake = () => {};

  async function once() {
    const ticket = await post("live-ticket");
    const headers = { [ticket.header]: ticket.ticket, Accept: "text/event-stream" };
    if (lastId) headers["Last-Event-ID"] = lastId;
    const options = { headers, signal: current.signal, cache: "no-store", credentials: "same-origin" };
    const response = await fetch(address("live", query()), options);
    if (!response.ok) throw await refusal(response);
    pause = FIRST_PAUSE_MS;
    onLink("live");
    await readEvents(response.body, current, (event) => {
      if (event.id !== undefined) lastId = event.id;
      if (event.data) onEvent(event.name, JSON.parse(event.data));
    });
  }

  async function forever() {
    while (!closed) {
      const mine = current;
      try {
        await once();
      } catch (error) {
        if (closed) return;
        const asked = mine.signal.aborted && mine.signal.reason === "asked";
        if (!asked) onLink(error instanceof ApiError && error.http >= 400 && error.http < 500 ? "asking" : "lost", error);
      }
      if (closed) return;
      if (mine !== current) continue;
      current = new AbortController();
      await rest();
    }
  }

  /** Half of the pause is chance, so that a thousand pages do not come back in the same instant. */
  function rest() {
    const length = pause * (0.5 + Math.random() / 2);
    pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, length);
      wake = () => { clearTimeout(timer); resolve(); };
    });
  }

  function reopen(keep = false) {
    if (!keep) lastId = "";
    const old = current;
    current = new AbortController();
    old.abort("asked");
    wake();
  }

  function close() {
    closed = true;
    current.abort("asked");
    wake();
    window.removeEventListener("online", hurry);
  }

  const hurry = () => { pause = FIRST_PAUSE_MS; wake(); };
  window.addEventListener("online", hurry);
  forever();
  return { reopen, close };
}

/** Server-sent events out of a stream of bytes; ends with it, or when it is silent for too long. */
async function readEvents(body, abort, onEvent) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  const parse = eventParser(onEvent);
  let watchdog;
  try {
    for (;;) {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => abort.abort("silence"), SILENCE_MS);
      const { value, done } = await reader.read();
      if (done) return;
      parse(value);
    }
  } finally {
    clearTimeout(watchdog);
  }
}

/** Takes text in pieces of any size and calls onEvent({id, name, data}) for each whole event. Comments are skipped. */
export function eventParser(onEvent) {
  let rest = "";
  let event = { name: "message", data: "", id: undefined };
  function line(text) {
    if (text === "") {
      if (event.data || event.id !== undefined) onEvent(event);
      event = { name: "message", data: "", id: undefined };
      return;
    }
    const colon = text.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? text : text.slice(0, colon);
    const value = colon < 0 ? "" : text.slice(text[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "event") event.name = value;
    else if (field === "data") event.data += (event.data ? "\n" : "") + value;
    else if (field === "id") event.id = value;
  }
  return (piece) => {
    const lines = (rest + piece).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    lines.forEach(line);
  };
}
