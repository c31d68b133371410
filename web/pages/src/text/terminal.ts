/** Output as text with styles: what a terminal shows. Pure. */

import { type Piece, pieces } from "./terminal_codes.ts";

export { type Piece, pieces };

export interface Block {
  id: number;
  pieces: Piece[];
  /** Number of characters of the raw text. */
  length: number;
  text: string;
}

/** Longest text that is kept; older blocks are dropped. */
export const KEPT_CHARS = 2_000_000;
export const BLOCK_CHARS = 32_768;
/** No escape sequence that matters is longer. */
const SEQUENCE_CHARS = 64;

/** Return the end of the last line of the first block, 0 if the block is a part of one line. */
const endOfLines = (text: string): number => text.lastIndexOf("\n", BLOCK_CHARS - 1) + 1;

/** Return how many characters of a line that is longer than a block a later part overwrites. */
const overwrittenChars = (text: string): number =>
  endOfLines(text) > 0 ? 0 : Math.max(0, text.lastIndexOf("\r", BLOCK_CHARS - 2));

/** Return the length of the first block: whole lines, or else a part of a line. */
function cut(text: string): number {
  const lines = endOfLines(text);
  if (lines > 0) return lines;
  const begin = text.lastIndexOf("\x1b", BLOCK_CHARS - 1);
  const isOpen = begin > 0 && !/[@-Z\\^-~]/.test(text.slice(begin + 1, BLOCK_CHARS));
  if (isOpen && begin > BLOCK_CHARS - SEQUENCE_CHARS) return begin;
  return /[\ud800-\udbff]/.test(text.charAt(BLOCK_CHARS - 1)) ? BLOCK_CHARS - 1 : BLOCK_CHARS;
}

/** Text that grows at its end. Only the last block is parsed again when it does. */
export class TerminalText {
  blocks: Block[] = [];
  dropped = 0;
  #next = 0;
  #length = 0;

  append(text: string): void {
    const last = this.blocks.pop();
    this.#length -= last?.length ?? 0;
    let rest = (last?.text ?? "") + text;
    while (rest !== "") {
      const overwritten = rest.length > BLOCK_CHARS ? overwrittenChars(rest) : 0;
      if (overwritten > 0) {
        rest = rest.slice(overwritten);
        continue;
      }
      const part = rest.length > BLOCK_CHARS ? rest.slice(0, cut(rest)) : rest;
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
