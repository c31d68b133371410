/**
 * Text as a terminal shows it: \r and \b move the cursor back and overwrite, colour codes become
 * styles, other control codes are left out. Pure.
 */

/** Text and class names. */
export type Piece = [string, string];

/** Characters of a line that are shown; the rest is counted. */
export const LONGEST_LINE = 10_000;
/** Pieces with styles of their own; text after them has no style. */
const MOST_PIECES = 5000;

const CONTROLS = String.raw`\x00-\x08\x0b-\x1f\x7f-\x9f`;
const CONTROL = new RegExp(`[${CONTROLS}]`);
/** Not a pattern: one for "10,001 characters without an end of line" begins again at each character. */
const isTooLong = (text: string): boolean =>
  text.length > LONGEST_LINE && text.split("\n").some((line) => line.length > LONGEST_LINE);
/**
 * An escape sequence of ECMA-48: CSI with parameters and final byte, a string such as a window
 * title, or a short one. The last may be cut off.
 */
const ESCAPE = String.raw`\x1b\[([0-?]{0,64})[ -/]{0,8}(?:([@-~])|$)|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\|\x1b$)?|\x1b[ -/]{0,8}(?:[0-Z\\^-~]|$)`;
const TOKEN = new RegExp(`${ESCAPE}|[\\n${CONTROLS}]|[^\\n${CONTROLS}]+`, "g");

/** Return the pieces of a text with control codes. */
export function pieces(text: string): Piece[] {
  if (!CONTROL.test(text) && !isTooLong(text)) return [[text, ""]];
  const screen = new Screen();
  for (const [token, parameters = "", final] of text.matchAll(TOKEN)) {
    if (final) screen.control(parameters, final);
    else if (token === "\n") screen.endLine(true);
    else if (token === "\r") screen.column = 0;
    else if (token === "\b") screen.column = Math.max(0, screen.column - 1);
    else if (!CONTROL.test(token)) screen.put(token);
  }
  screen.endLine(false);
  return screen.out;
}

class Screen {
  readonly out: Piece[] = [];
  column = 0;
  #cells: string[] = [];
  #looks: string[] = [];
  #beyond = 0;
  #style: Style = { ...NO_STYLE };
  #look = "";

  #add(more: string, look: string): void {
    const last = this.out.at(-1);
    const wanted = this.out.length < MOST_PIECES ? look : "";
    if (last && last[1] === wanted) last[0] += more;
    else this.out.push([more, wanted]);
  }

  put(more: string): void {
    for (const character of more) {
      if (this.column < LONGEST_LINE) {
        while (this.#cells.length < this.column) {
          this.#cells.push(" ");
          this.#looks.push("");
        }
        this.#cells[this.column] = character;
        this.#looks[this.column] = this.#look;
      }
      this.column += 1;
    }
    this.#beyond = Math.max(this.#beyond, this.column - LONGEST_LINE);
  }

  endLine(newline: boolean): void {
    const [cells, looks] = [this.#cells, this.#looks];
    for (let from = 0, to = 0; from < cells.length; from = to) {
      for (to = from + 1; to < cells.length && looks[to] === looks[from]; ) to += 1;
      this.#add(cells.slice(from, to).join(""), looks[from] ?? "");
    }
    if (this.#beyond > 0) this.#add(` [${this.#beyond} more characters in this line]`, "");
    if (newline) this.#add("\n", "");
    [this.#cells, this.#looks, this.column, this.#beyond] = [[], [], 0, 0];
  }

  control(parameters: string, final: string): void {
    const count = Math.min(LONGEST_LINE, Number.parseInt(parameters, 10) || 0);
    if (final === "m") {
      restyle(this.#style, parameters);
      this.#look = classNames(this.#style);
    } else if (final === "K") this.#erase(count);
    else if (final === "G") this.column = Math.max(0, count - 1);
    else if (final === "C") this.column = Math.min(LONGEST_LINE, this.column + Math.max(1, count));
    else if (final === "D") this.column = Math.max(0, this.column - Math.max(1, count));
  }

  #erase(how: number): void {
    const [cells, looks] = [this.#cells, this.#looks];
    if (how === 1) {
      const end = Math.min(this.column + 1, cells.length);
      cells.fill(" ", 0, end);
      looks.fill("", 0, end);
      return;
    }
    cells.length = looks.length = Math.min(cells.length, how === 2 ? 0 : this.column);
    this.#beyond = 0;
  }
}

interface Style {
  colour: string;
  bold: boolean;
  dim: boolean;
  italic: boolean;
  underline: boolean;
  inverse: boolean;
}

const NO_STYLE: Style = {
  colour: "",
  bold: false,
  dim: false,
  italic: false,
  underline: false,
  inverse: false,
};
/** Select Graphic Rendition: the usual attributes. */
const ATTRIBUTES: Record<number, Partial<Style>> = {
  0: NO_STYLE,
  1: { bold: true },
  2: { dim: true },
  3: { italic: true },
  4: { underline: true },
  7: { inverse: true },
  22: { bold: false, dim: false },
  23: { italic: false },
  24: { underline: false },
  27: { inverse: false },
  39: { colour: "" },
};
/** Numbers that follow the code of another palette. */
const OTHERS: Record<number, number> = { 5: 2, 2: 4 };

/** Change the style. Colours are those of the palette of 8; others are the usual one. */
function restyle(style: Style, parameters: string): void {
  const codes = parameters.split(";");
  for (let n = 0; n < codes.length; n += 1) {
    const code = Number.parseInt(codes[n] ?? "", 10) || 0;
    if (code === 38 || code === 48) {
      const [kind, colour] = otherColour(codes, n);
      if (code === 38) style.colour = kind === 5 && colour < 16 ? String(colour % 8) : "";
      n += OTHERS[kind] ?? 0;
    } else Object.assign(style, ATTRIBUTES[code] ?? colourOf(code));
  }
}

/** Return kind and number of a colour of another palette; with colons it is one parameter. */
const otherColour = (codes: string[], at: number): [number, number] =>
  codes[at]?.includes(":")
    ? [Number.NaN, Number.NaN]
    : [Number(codes[at + 1]), Number(codes[at + 2])];

const colourOf = (code: number): Partial<Style> =>
  (code >= 30 && code <= 37) || (code >= 90 && code <= 97) ? { colour: String(code % 10) } : {};

function classNames(style: Style): string {
  const names = (["bold", "dim", "italic", "underline", "inverse"] as const).filter(
    (name) => style[name],
  );
  return [...names, ...(style.colour ? [style.colour] : [])].map((name) => `t-${name}`).join(" ");
}
