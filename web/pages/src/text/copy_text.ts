/** Return what a reader copies from an example: of a terminal session, the commands alone. */
export function copyText(code: string): string {
  const commands = code.split("\n").filter((line) => line.startsWith("$ "));
  return commands.length ? commands.map((line) => line.slice(2)).join("\n") : code;
}
