/** Output as text with styles: what a terminal shows. Pure. The parser is that of the page of apps. */

import { pieces as parse } from "../../../static/terminal.js";

/** Text and class names. */
export type Piece = [string, string];

export interface Block {
  id: number;
  pieces: Piece[];
  /** Number of characters of the raw text. */
  length: number;
  text: string;
}

/** Longest text that is kept; older blocks are dropped. */
export const KEPT_CHARS = 2_000_000;
const BLOCK_CHARS = 32_768;

export const pieces = (text: string): Piece[] => parse(text) as Piece[];

/** Text that grows at its end. Only the last block is parsed again when it does. */
export class TerminalText {
  blocks: Block[] = [];
  dropped = 0;
  #next = 0;
  #length = 0;

  append(text: string): void {
    const last = this.blocks.at(-1);
    let rest = text;
    if (last && (last.length < BLOCK_CHARS || !last.text.endsWith("\n"))) {
      this.blocks.pop();
      this.#length -= last.length;
      rest = last.text + text;
    }
    while (rest !== "") {
      const end = rest.length > BLOCK_CHARS ? rest.indexOf("\n", BLOCK_CHARS) + 1 : 0;
      const part = end > 0 ? rest.slice(0, end) : rest;
      rest = rest.slice(part.length);
      this.blocks.push({ id: this.#next++, pieces: pieces(part), length: part.length, text: part });
      this.#length += part.length;
    }
    while (this.#length > KEPT_CHARS && this.blocks.length > 1) {
      const first = this.blocks.shift();
      this.#length -= first?.length ?? 0;
      this.dropped += first?.length ?? 0;
    }
    // a new list, so that a component sees the change
    this.blocks = [...this.blocks];
  }

  /** Return the lines that contain these words, in either case, without styles. */
  find(words: string): string[] {
    const wanted = words.toLowerCase();
    return this.blocks
      .flatMap((b) =>
        b.pieces
          .map(([text]) => text)
          .join("")
          .replace(/\n$/, "")
          .split("\n"),
      )
      .filter((line) => line.toLowerCase().includes(wanted));
  }
}
