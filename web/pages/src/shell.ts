/**
 * A shell in a task, which supervisor and agent relay. Input goes in requests that are numbered by bytes,
 * so a repetition types nothing twice. Output comes in a stream of its own, from the byte that is
 * missing, so a lost connection loses nothing.
 */

import { ApiError, postOnce, requestId } from "./api.ts";
import { link, openStream, readStream } from "./live.ts";
import { ownerOf, path } from "./site.ts";
import { sentence } from "./text/format.ts";
import { isAsking } from "./text/link_state.ts";
import { eventParser } from "./text/server_events.ts";
import {
  base64Of,
  bytesOf,
  isOver,
  joined,
  type ShellPart,
  type ShellState,
} from "./text/shell_text.ts";

const OPEN = "/page-data/site/shell-open";
const USE = "/page-data/site/shell-use";
const PATIENCE_MS = 30_000;
/** The far end hangs up a shell that nobody uses for this time. */
const RESUME_MS = 60_000;
/** An agent that begins is waited for. */
const OPENING_MS = 20_000;
const FIRST_PAUSE_MS = 300;
const LONGEST_PAUSE_MS = 3000;
/** Between two requests for output, where the site has no stream. */
const FIRST_ASK_MS = 100;
const LONGEST_ASK_MS = 1000;
const PIECE_BYTES = 32 * 1024;
const OUTPUT_BYTES = 64 * 1024;
/** Input that is not sent yet. */
const MOST_TYPED_BYTES = 1024 * 1024;

export interface ShellPlace {
  jid: string;
  role: string;
  index: number;
  attempt: number;
}

export interface ShellSize {
  rows: number;
  cols: number;
}

export interface ShellListener {
  onState: (state: ShellState) => void;
  /** More output is read when the promise is fulfilled. */
  onOutput: (data: Uint8Array) => Promise<void>;
}

const rest = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** Return whether the same request may succeed later. */
const isPassing = (error: ApiError): boolean =>
  error.retry || error.http === 0 || error.http >= 500 || [401, 429].includes(error.http);

export class ShellSession {
  #state: ShellState = { name: "opening" };
  readonly #named: { uid: string | undefined; computeJid: string; shellId: string };
  #typed: Uint8Array = new Uint8Array();
  #sent = 0;
  #size: ShellSize | undefined;
  #sending = false;
  #offset = 0;
  #askMs = FIRST_ASK_MS;
  readonly #abort = new AbortController();

  constructor(
    private readonly place: ShellPlace,
    size: ShellSize,
    private readonly listener: ShellListener,
  ) {
    const { jid } = place;
    this.#named = { uid: ownerOf(jid), computeJid: jid, shellId: requestId() };
    void this.#live(size);
  }

  /** Type a text. Return whether there was room for it. */
  type(text: string): boolean {
    const data = new TextEncoder().encode(text);
    if (this.#typed.length + data.length > MOST_TYPED_BYTES) return false;
    this.#typed = joined(this.#typed, data);
    this.#askMs = FIRST_ASK_MS;
    void this.#send();
    return true;
  }

  resize(size: ShellSize): void {
    this.#size = size;
    void this.#send();
  }

  /** Hang up, as when a terminal is closed. It works while the page is left, too. */
  close(): void {
    if (isOver(this.#state)) return;
    this.#set({ name: "lost", why: "The shell is closed." });
    void fetch(path(USE), {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...this.#named, inputAt: this.#sent, close: true }),
      credentials: "same-origin",
      keepalive: true,
    }).catch(() => {
      // the far end hangs up by itself when nobody uses the shell
    });
  }

  #set(state: ShellState): void {
    if (isOver(this.#state)) return;
    this.#state = state;
    if (isOver(state)) this.#abort.abort();
    this.listener.onState(state);
  }

  #lose(error: ApiError): void {
    this.#set({ name: "lost", why: `${sentence(error.message)} ${sentence(error.advice)}`.trim() });
  }

  async #live(size: ShellSize): Promise<void> {
    try {
      await this.#open(size);
      this.#set({ name: "open" });
      void this.#send();
      await this.#show();
    } catch (error) {
      if (isOver(this.#state)) return;
      if (!(error instanceof ApiError)) throw error;
      this.#lose(error);
    }
  }

  async #open(size: ShellSize): Promise<void> {
    const { role, index, attempt } = this.place;
    const body = { ...this.#named, role, index, attempt, term: "xterm-256color", ...size };
    await this.#again(OPENING_MS, () => postOnce(OPEN, body, PATIENCE_MS));
  }

  /** Repeat what may succeed later, for a time since the last success. Raises ApiError. */
  async #again<T>(limitMs: number, work: () => Promise<T>): Promise<T> {
    const until = Date.now() + limitMs;
    for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
      try {
        return await work();
      } catch (error) {
        if (isOver(this.#state)) throw error;
        if (!(error instanceof ApiError) || !isPassing(error) || Date.now() > until) throw error;
        if (this.#state.name === "open") this.#set({ name: "resuming" });
      }
      await rest(pause);
    }
  }

  // ---- input

  async #send(): Promise<void> {
    if (this.#sending || this.#state.name === "opening") return;
    this.#sending = true;
    try {
      while (!isOver(this.#state) && (this.#typed.length > 0 || this.#size))
        await this.#sendPiece();
    } catch (error) {
      if (!isOver(this.#state)) {
        if (!(error instanceof ApiError)) throw error;
        this.#lose(error);
      }
    } finally {
      this.#sending = false;
    }
  }

  async #sendPiece(): Promise<void> {
    const piece = this.#typed.slice(0, PIECE_BYTES);
    const size = this.#size;
    const body = { ...this.#named, inputAt: this.#sent, input: base64Of(piece), ...size };
    const answer = await this.#again(RESUME_MS, () =>
      postOnce<{ inputAt: number }>(USE, body, PATIENCE_MS),
    );
    if (this.#size === size) this.#size = undefined;
    const accepted = answer.inputAt - this.#sent;
    this.#typed = this.#typed.slice(accepted);
    this.#sent = answer.inputAt;
    // the program in the shell does not read now
    if (piece.length > 0 && accepted === 0) await rest(FIRST_PAUSE_MS);
  }

  // ---- output

  async #show(): Promise<void> {
    while (!isOver(this.#state)) {
      await this.#again(RESUME_MS, () => (isAsking(link.value) ? this.#ask() : this.#follow()));
      // a stream that ends without an exit is opened again
      if (!isOver(this.#state) && !isAsking(link.value)) {
        this.#set({ name: "resuming" });
        await rest(FIRST_PAUSE_MS);
      }
    }
  }

  async #ask(): Promise<void> {
    const body = { ...this.#named, inputAt: this.#sent, offset: this.#offset, limit: OUTPUT_BYTES };
    const part = await postOnce<ShellPart>(USE, body, PATIENCE_MS);
    this.#set({ name: "open" });
    this.#askMs = part.data ? FIRST_ASK_MS : Math.min(2 * this.#askMs, LONGEST_ASK_MS);
    await this.#take(part);
    if (!isOver(this.#state)) await rest(this.#askMs);
  }

  async #follow(): Promise<void> {
    const { computeJid, shellId } = this.#named;
    const query = new URLSearchParams({ computeJid, shell: shellId, offset: `${this.#offset}` });
    const silence = new AbortController();
    const stop = (): void => silence.abort();
    this.#abort.signal.addEventListener("abort", stop);
    const parts: (ShellPart | { lost: string })[] = [];
    const parse = eventParser((event) => {
      if (event.name === "shell" && event.data) parts.push(JSON.parse(event.data));
    });
    try {
      const body = await openStream(`?${query}`, silence.signal);
      this.#set({ name: "open" });
      await readStream(body, stop, async (text) => {
        parse(text);
        for (const part of parts.splice(0)) {
          if ("lost" in part) this.#set({ name: "lost", why: sentence(part.lost) });
          else await this.#take(part);
        }
      });
    } catch (error) {
      // the stream has begun and broke off, or was silent
      if (!(error instanceof ApiError)) return;
      throw error;
    } finally {
      this.#abort.signal.removeEventListener("abort", stop);
    }
  }

  async #take(part: ShellPart): Promise<void> {
    const missing = part.offset - this.#offset;
    if (missing > 0) await this.#tell(`${missing} bytes of output were lost with the connection`);
    const data = bytesOf(part.data).slice(Math.max(0, -missing));
    this.#offset = Math.max(this.#offset, part.offset) + data.length;
    if (data.length > 0) await this.listener.onOutput(data);
    const { code, signal, detail } = part;
    if (part.end) this.#set({ name: "ended", code, signal, detail });
  }

  #tell(text: string): Promise<void> {
    return this.listener.onOutput(new TextEncoder().encode(`\r\n[${text}]\r\n`));
  }
}
