/** Frames of a run: one request at a time for each report; frames never change, so they are kept. */

import { ApiError, get } from "./api.ts";
import type { Picture } from "./picture/draw.ts";
import { sentence } from "./text/format.ts";

export interface FramesOf {
  simulationType: string;
  simulationId: string;
  hash: string;
  serial: number;
}

const KEPT = 80;
/** A frame that was announced may not be readable for a moment. */
const AGAIN_MS = 700;

export class FrameLoader {
  #kept = new Map<number, Picture>();
  #wanted = -1;
  #shown = -1;
  #busy = false;
  #closed = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly run: FramesOf,
    private readonly report: string,
    private readonly onFrame: (index: number, picture: Picture) => void,
    private readonly onFault: (sentence: string) => void,
  ) {}

  /** Show this frame. Whoever asks for another one meanwhile gets that one. */
  want(index: number): void {
    this.#wanted = index;
    void this.#work();
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
  }

  async #work(): Promise<void> {
    if (this.#busy) return;
    this.#busy = true;
    clearTimeout(this.#timer);
    while (!this.#closed && this.#wanted >= 0 && this.#wanted !== this.#shown) {
      if (!(await this.#show(this.#wanted))) break;
    }
    this.#busy = false;
  }

  async #show(index: number): Promise<boolean> {
    try {
      const picture = this.#kept.get(index) ?? (await this.#fetch(index));
      if (this.#closed) return false;
      this.#kept.delete(index);
      this.#kept.set(index, picture);
      const [oldest] = this.#kept.keys();
      if (this.#kept.size > KEPT && oldest !== undefined) this.#kept.delete(oldest);
      this.#shown = index;
      this.onFrame(index, picture);
      return true;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (this.#closed) return false;
      if (this.#wanted !== index) return true;
      this.onFault(`Frame ${index + 1}: ${sentence(error.message)}`);
      this.#timer = setTimeout(() => void this.#work(), error.retry ? 2 * AGAIN_MS : AGAIN_MS);
      return false;
    }
  }

  #fetch(index: number): Promise<Picture> {
    const { simulationId, simulationType, hash, serial } = this.run;
    const id = [index, this.report, simulationId, simulationType, hash, serial].join("*");
    return get(`/simulation-frame/${encodeURIComponent(id)}`);
  }
}
