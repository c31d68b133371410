/** Texts without values that look like secrets, before a browser keeps them. Pure. */

const NAME = String.raw`[\w.-]*(?:secret|passw|passphrase|passwd|pwd|private|credential|cookie|authorization|bearer|api[_-]?key|access[_-]?key|token|otp)[\w.-]*`;
/** `name: value`, `"name": "value"`, `NAME=value`, `--name value`. */
const PAIR = new RegExp(
  String.raw`(["']?${NAME}["']?[ \t]*[:=][ \t]*|--?${NAME}[ \t]+)("(?:[^"\\\n]|\\.)*"?|'[^'\n]*'?|[^\s,}\]]+)`,
  "giu",
);
const ADDRESS = /(\w{1,20}:\/\/)[^\s/@'"]{1,512}@/gu;
const BLOCK = new RegExp(
  String.raw`^(\s*)-?\s*["']?${NAME}["']?\s*:\s*(?:[|>][+-]?\d*)?\s*$`,
  "iu",
);

const indent = (line: string): number => line.length - line.trimStart().length;

/**
 * Return the text without these values: after a name that says so, below such a key in YAML, and in
 * addresses. Other text stays as it is.
 */
export function withoutSecrets(text: string): string {
  let below = -1;
  const lines = text.split("\n").map((line) => {
    if (below >= 0 && line.trim() !== "" && indent(line) <= below) below = -1;
    if (below >= 0) return line.includes(":") ? line.replace(/:.*$/u, ":") : "";
    const block = BLOCK.exec(line);
    if (block) {
      below = block[1]?.length ?? 0;
      return line;
    }
    return line.replace(PAIR, "$1").replace(ADDRESS, "$1");
  });
  return lines.join("\n");
}
