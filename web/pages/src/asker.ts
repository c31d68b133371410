/** Asks for data again and again: one request at a time, with pauses after failures. */

/** Calls of `reload` within this time become one request. */
export const GATHER_MS = 300;
const PAUSES_MS = [500, 1000, 2000, 4000, 8000];

export interface Answers<T> {
  onAsk: () => void;
  onData: (data: T) => void;
  /** Return whether the request may succeed later. */
  onError: (error: unknown) => boolean;
}

/**
 * A reload while a request is under way follows its answer, so answers that are slower than the
 * reloads are used all the same.
 */
export class Asker<T> {
  #abort = new AbortController();
  #closed = false;
  #underWay = false;
  #again = false;
  #tries = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly load: (signal: AbortSignal) => Promise<T>,
    private readonly answers: Answers<T>,
  ) {
    void this.#ask();
  }

  reload(): void {
    if (this.#closed) return;
    if (this.#underWay) this.#again = true;
    else this.#askIn(GATHER_MS);
  }

  close(): void {
    this.#closed = true;
    this.#abort.abort();
    clearTimeout(this.#timer);
  }

  #askIn(ms: number): void {
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      void this.#ask();
    }, ms);
  }

  async #ask(): Promise<void> {
    this.#abort = new AbortController();
    this.#underWay = true;
    this.#again = false;
    this.answers.onAsk();
    let pause: number | undefined;
    try {
      const data = await this.load(this.#abort.signal);
      if (this.#closed) return;
      this.#tries = 0;
      this.answers.onData(data);
    } catch (error) {
      if (this.#closed) return;
      if (this.answers.onError(error)) {
        pause = PAUSES_MS[Math.min(this.#tries, PAUSES_MS.length - 1)];
        this.#tries += 1;
      }
    }
    this.#underWay = false;
    if (pause !== undefined) this.#askIn(pause);
    else if (this.#again) this.#askIn(GATHER_MS);
  }
}
