// Text as a terminal shows it: \r and \b move the cursor back and overwrite, colour codes become styles, other control codes are left out.
// Everything here is pure except `showTerminal`, which sets text nodes and class names, never markup.

/** Characters of a line that are shown; the rest is counted. */
export const LONGEST_LINE = 10000;
/** Pieces with styles of their own; text after them has no style. */
const MOST_PIECES = 5000;

const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/;
const TOO_LONG = new RegExp(`[^\\n]{${LONGEST_LINE + 1}}`);
/** An escape sequence of ECMA-48: CSI with parameters and final byte, a string such as a window title, or a short one. The last may be cut off. */
const ESCAPE = String.raw`\x1b\[([0-?]{0,64})[ -/]{0,8}(?:([@-~])|$)|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\|\x1b$)?|\x1b[ -/]{0,8}(?:[0-Z\\^-~]|$)`;
const TOKEN = new RegExp(String.raw`${ESCAPE}|[\x00-\x08\x0a-\x1f\x7f-\x9f]|[^\x00-\x08\x0a-\x1f\x7f-\x9f]+`, "g");
const SEQUENCE = new RegExp(`^(?:${ESCAPE})`);
/** No escape sequence that is looked for is longer, bytes. */
export const LONGEST_SEQUENCE = 128;

/** Where the escape sequence that byte `at` is inside of ends; `at` itself where it is inside of none. */
export function afterSequence(bytes, at) {
  const from = at > 0 ? bytes.lastIndexOf(0x1b, at - 1) : -1;
  if (from < 0 || from < at - LONGEST_SEQUENCE) return at;
  const found = SEQUENCE.exec(String.fromCharCode(...bytes.subarray(from, from + 2 * LONGEST_SEQUENCE)));
  return Math.max(at, from + (found ? found[0].length : 0));
}

/** [[text, class names], ...] of a text with control codes. */
export function pieces(text) {
  if (!CONTROL.test(text) && !TOO_LONG.test(text)) return [[text, ""]];
  const out = [];
  const style = { colour: "", bold: false, dim: false, italic: false, underline: false, inverse: false };
  let [cells, looks, column, beyond, look] = [[], [], 0, 0, ""];

  function add(more, its) {
    const last = out.at(-1);
    const wanted = out.length < MOST_PIECES ? its : "";
    if (last && last[1] === wanted) last[0] += more;
    else out.push([more, wanted]);
  }

  function put(more) {
    for (const character of more) {
      if (column < LONGEST_LINE) {
        while (cells.length < column) {
          cells.push(" ");
          looks.push("");
        }
        cells[column] = character;
        looks[column] = look;
      }
      column += 1;
    }
    beyond = Math.max(beyond, column - LONGEST_LINE);
  }

  function endLine(newline) {
    for (let from = 0, to; from < cells.length; from = to) {
      for (to = from + 1; to < cells.length && looks[to] === looks[from];) to += 1;
      add(cells.slice(from, to).join(""), looks[from]);
    }
    if (beyond > 0) add(` [${beyond} more characters in this line]`, "");
    if (newline) add("\n", "");
    [cells, looks, column, beyond] = [[], [], 0, 0];
  }

  function erase(how) {
    if (how === 1) {
      for (let n = 0; n <= Math.min(column, cells.length - 1); n += 1) [cells[n], looks[n]] = [" ", ""];
      return;
    }
    cells.length = looks.length = Math.min(cells.length, how === 2 ? 0 : column);
    beyond = 0;
  }

  function control(parameters, final) {
    const count = Math.min(LONGEST_LINE, Number.parseInt(parameters, 10) || 0);
    if (final === "m") {
      restyle(style, parameters);
      look = classNames(style);
    } else if (final === "K") erase(count);
    else if (final === "G") column = Math.max(0, count - 1);
    else if (final === "C") column = Math.min(LONGEST_LINE, column + Math.max(1, count));
    else if (final === "D") column = Math.max(0, column - Math.max(1, count));
  }

  for (const [token, parameters, final] of text.matchAll(TOKEN)) {
    if (final) control(parameters, final);
    else if (token === "\n") endLine(true);
    else if (token === "\r") column = 0;
    else if (token === "\b") column = Math.max(0, column - 1);
    else if (!CONTROL.test(token)) put(token);
  }
  endLine(false);
  return out;
}

/** The same without styles. */
export const plain = (text) => pieces(text).map(([said]) => said).join("");

/** Select Graphic Rendition: colours of the palette of 8 and the usual attributes; other colours are the usual one. */
function restyle(style, parameters) {
  const codes = parameters.split(";");
  for (let n = 0; n < codes.length; n += 1) {
    const code = Number.parseInt(codes[n], 10) || 0;
    if (code === 38 || code === 48) {
      const [kind, colour] = codes[n].includes(":") ? [] : [Number(codes[n + 1]), Number(codes[n + 2])];
      if (code === 38) style.colour = kind === 5 && colour < 16 ? String(colour % 8) : "";
      n += { 5: 2, 2: 4 }[kind] ?? 0;
    } else if (code === 0) Object.assign(style, { colour: "", bold: false, dim: false, italic: false, underline: false, inverse: false });
    else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 22) style.bold = style.dim = false;
    else if (code === 3 || code === 23) style.italic = code === 3;
    else if (code === 4 || code === 24) style.underline = code === 4;
    else if (code === 7 || code === 27) style.inverse = code === 7;
    else if (code === 39) style.colour = "";
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) style.colour = String(code % 10);
  }
}

function classNames(style) {
  const names = ["bold", "dim", "italic", "underline", "inverse"].filter((name) => style[name]);
  return [...names, ...(style.colour ? [style.colour] : [])].map((name) => `t-${name}`).join(" ");
}

/** Shows the text in `target`. What is shown already is left alone, for readers who have marked a part of it. */
export function showTerminal(target, text) {
  if (shown.get(target) === text) return;
  shown.set(target, text);
  target.replaceChildren(...pieces(text).map(([said, look]) => {
    if (!look) return said;
    const span = document.createElement("span");
    span.className = look;
    span.textContent = said;
    return span;
  }));
}

const shown = new WeakMap();
