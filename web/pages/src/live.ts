/**
 * The stream of a page. A ticket goes in a header, so the stream is read with fetch. It is opened
 * again, from the id of the last event, whenever it ends or is silent.
 */

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { ApiError, post, refusal } from "./api.ts";
import { siteChanged } from "./me.ts";
import { path } from "./site.ts";
import { isAsking, type Link, linkAfter } from "./text/link_state.ts";
import { eventParser } from "./text/server_events.ts";

export const link = signal<Link>("opening");

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 20_000;
/** The server sends something every 15 s. */
const SILENCE_MS = 40_000;
const ASK_MS = 5_000;

/** Open a stream of the supervisor with a new ticket. Raises ApiError. */
export async function openStream(
  query: string,
  signal: AbortSignal,
  lastId = "",
): Promise<ReadableStream<Uint8Array>> {
  const { ticket, header } = await post<Ticket>("/live-ticket", {}, signal);
  const headers: Record<string, string> = { [header]: ticket, Accept: "text/event-stream" };
  if (lastId) headers["Last-Event-ID"] = lastId;
  const response = await fetch(path(`/live${query}`), {
    headers,
    signal,
    cache: "no-store",
    credentials: "same-origin",
  });
  if (!response.ok || response.body === null) throw await refusal(response);
  return response.body;
}

/**
 * Read a stream to its end. onSilence: called when nothing arrives for too long. onText: the next
 * piece is read when it has finished.
 */
export async function readStream(
  body: ReadableStream<Uint8Array>,
  onSilence: () => void,
  onText: (text: string) => void | Promise<void>,
): Promise<void> {
  const reader = body
    .pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>)
    .getReader();
  let watchdog: ReturnType<typeof setTimeout> | undefined;
  try {
    for (;;) {
      clearTimeout(watchdog);
      watchdog = setTimeout(onSilence, SILENCE_MS);
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(watchdog);
      await onText(value);
    }
  } finally {
    clearTimeout(watchdog);
  }
}

interface Ticket {
  ticket: string;
  header: string;
}

export type OnEvent = (name: string, data: unknown) => void;

export class LiveStream {
  #lastId = "";
  #pause = FIRST_PAUSE_MS;
  #abort = new AbortController();
  #closed = false;
  #wake = (): void => {};

  constructor(
    private readonly query: string,
    private readonly onEvent: OnEvent,
    private readonly onAsk: () => void,
    private readonly onOpen: () => void,
  ) {
    window.addEventListener("online", this.#hurry);
    void this.#forever();
  }

  close(): void {
    this.#closed = true;
    this.#abort.abort();
    this.#wake();
    window.removeEventListener("online", this.#hurry);
  }

  #hurry = (): void => {
    this.#pause = FIRST_PAUSE_MS;
    this.#wake();
  };

  async #forever(): Promise<void> {
    while (!this.#closed) {
      try {
        await this.#once();
      } catch (error) {
        if (this.#closed) return;
        link.value = linkAfter(error instanceof ApiError ? error.http : 0);
      }
      if (this.#closed) return;
      this.#abort = new AbortController();
      if (isAsking(link.value)) {
        this.onAsk();
        await this.#rest(ASK_MS);
      } else {
        await this.#rest(this.#pause * (0.5 + Math.random() / 2));
        this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE_MS);
      }
    }
  }

  async #once(): Promise<void> {
    const body = await openStream(this.query, this.#abort.signal, this.#lastId);
    this.#pause = FIRST_PAUSE_MS;
    link.value = "live";
    await this.#read(body);
  }

  async #read(body: ReadableStream<Uint8Array>): Promise<void> {
    let opened = false;
    const parse = eventParser((event) => {
      if (event.id !== undefined) this.#lastId = event.id;
      // The first id follows what the stream begins with. An id of an earlier stream may be invalid
      // by now, so each opening counts.
      if (event.id !== undefined && !opened) {
        opened = true;
        this.onOpen();
      }
      if (!event.data) return;
      const said: unknown = JSON.parse(event.data);
      if (event.name === "site") siteChanged(said as Parameters<typeof siteChanged>[0]);
      this.onEvent(event.name, said);
    });
    await readStream(body, () => this.#abort.abort(), parse);
  }

  #rest(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/**
 * Follow the stream of this page. query: what it follows. onAsk: called every few seconds where the
 * site has no stream. onOpen: called when the stream reports changes from now on; earlier ones may
 * be missing.
 */
export function useLive(
  query: string,
  onEvent: OnEvent,
  onAsk: () => void,
  onOpen: () => void = () => {},
): void {
  const handlers = useRef({ onEvent, onAsk, onOpen });
  handlers.current = { onEvent, onAsk, onOpen };
  useEffect(() => {
    link.value = "opening";
    const stream = new LiveStream(
      query,
      (name, data) => handlers.current.onEvent(name, data),
      () => handlers.current.onAsk(),
      () => handlers.current.onOpen(),
    );
    return () => stream.close();
  }, [query]);
}
