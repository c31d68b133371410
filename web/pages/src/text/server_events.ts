/** Parser of server-sent events. Pure. */

export interface ServerEvent {
  name: string;
  data: string;
  id: string | undefined;
}

/** Return a function that takes text in pieces of any size and calls `onEvent` for each event. */
export function eventParser(onEvent: (event: ServerEvent) => void): (piece: string) => void {
  let rest = "";
  let event: ServerEvent = { name: "message", data: "", id: undefined };
  const finish = (): void => {
    if (event.data || event.id !== undefined) onEvent(event);
    event = { name: "message", data: "", id: undefined };
  };
  const line = (text: string): void => {
    if (text === "") {
      finish();
      return;
    }
    const [field, value] = splitField(text);
    if (field === "event") event.name = value;
    else if (field === "data") event.data += (event.data ? "\n" : "") + value;
    else if (field === "id") event.id = value;
  };
  return (piece) => {
    const lines = (rest + piece).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop() ?? "";
    lines.forEach(line);
  };
}

/** Return name and value of a line; a comment has an empty name. */
function splitField(text: string): [string, string] {
  const colon = text.indexOf(":");
  if (colon < 0) return [text, ""];
  return [text.slice(0, colon), text.slice(text[colon + 1] === " " ? colon + 2 : colon + 1)];
}
