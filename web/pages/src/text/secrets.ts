/** Texts without values that look like secrets, before a browser keeps them. Pure, in linear time. */

const SECRET =
  /secret|passw|passphrase|pwd|private|credential|cookie|authorization|bearer|api[_-]?key|access[_-]?key|token|otp/i;
const WORD = /[\w.-]+/gy;
const OTHER = /[^\w.-]+/gy;
/** After a name: `: `, `=`, also behind its quote; after an option: blanks. */
const BETWEEN = /["']?[ \t]*[:=][ \t]*/y;
const BLANKS = /[ \t]+/y;
const VALUE = /"(?:[^"\\]|\\.)*"?|'[^']*'?|(?:(?:Bearer|Basic) +)?[^\s,}\]]+/y;
const ADDRESS = /(\b\w{1,20}:\/\/)[^\s/@'"]{1,512}@/gu;
/** The place of a value that the server does not show. */
const WITHHELD = /^"?@WITHHELD:[A-Za-z_]\w*@"?$/;
/** A key whose value is in the lines below it. */
const BLOCK = /^(.{1,200}?):[ \t]*(?:[|>][+-]?\d*|[{[])?$/;

const indent = (line: string): number => line.length - line.trimStart().length;

function match(pattern: RegExp, text: string, at: number): string | undefined {
  pattern.lastIndex = at;
  return pattern.exec(text)?.[0];
}

/**
 * Return the text without these values: after a name that says so, below such a key, and in
 * addresses. Other text stays as it is.
 */
export function withoutSecrets(text: string): string {
  let below = -1;
  const lines = text.split("\n").map((line) => {
    if (below >= 0 && line.trim() !== "" && indent(line) <= below) below = -1;
    if (below >= 0) return line.replace(/[^\s{}[\],].*$/, "");
    const key = BLOCK.exec(line.trimEnd())?.[1];
    if (key !== undefined && SECRET.test(key)) {
      below = indent(line);
      return line;
    }
    return withoutValues(line).replace(ADDRESS, "$1");
  });
  return lines.join("\n");
}

/** Return the value of a variable with this name as a browser may keep it. */
export const keptValue = (name: string, value: string): string =>
  SECRET.test(name) && !WITHHELD.test(value) ? "" : withoutSecrets(value);

function withoutValues(line: string): string {
  if (!SECRET.test(line)) return line;
  let out = "";
  let at = 0;
  while (at < line.length) {
    const word = match(WORD, line, at);
    const piece = word ?? match(OTHER, line, at) ?? line.charAt(at);
    out += piece;
    at += piece.length;
    if (word === undefined || !SECRET.test(word)) continue;
    const between =
      match(BETWEEN, line, at) ?? (word.startsWith("-") ? match(BLANKS, line, at) : undefined);
    if (between === undefined) continue;
    out += between;
    at += between.length;
    const value = match(VALUE, line, at);
    if (value === undefined || WITHHELD.test(value)) continue;
    out += value.startsWith('"') ? '""' : "";
    at += value.length;
  }
  return out;
}
