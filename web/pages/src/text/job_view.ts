/** The state of the page of a job, which is its address. Pure. */

export const TABS = [
  "log",
  "tasks",
  "timeline",
  "usage",
  "parameters",
  "events",
  "files",
  "debug",
  "shell",
] as const;
export type Tab = (typeof TABS)[number];

export interface JobView {
  tab: Tab;
  stream: "stdout" | "stderr";
  /** 0: the latest. */
  attempt: number;
  /** "": the task whose exit decided, or else the first one. */
  role: string;
  index: number;
  /** A new job is made from this one. */
  edit: boolean;
  /** The file that is shown. */
  file: string;
}

const NUMBER = /^\d{1,6}$/;

export function parseView(search: string): JobView {
  const query = new URLSearchParams(search);
  const number = (name: string): number => {
    const text = query.get(name) ?? "";
    return NUMBER.test(text) ? Number(text) : 0;
  };
  return {
    tab: TABS.find((t) => t === query.get("tab")) ?? "log",
    stream: query.get("stream") === "stderr" ? "stderr" : "stdout",
    attempt: number("attempt"),
    role: (query.get("role") ?? "").slice(0, 64),
    index: number("index"),
    edit: query.get("edit") === "1",
    file: (query.get("file") ?? "").slice(0, 1024),
  };
}

export function formatView(view: JobView): string {
  const query = new URLSearchParams();
  if (view.tab !== "log") query.set("tab", view.tab);
  for (const [name, value] of taskQuery(view)) query.set(name, value);
  if (view.tab === "parameters" && view.edit) query.set("edit", "1");
  if (["files", "debug"].includes(view.tab) && view.file) query.set("file", view.file);
  const text = query.toString();
  return text ? `?${text}` : "";
}

/** Return the parts of an address that name a task and one of its streams. */
export function taskQuery(view: JobView): [string, string][] {
  const parts: [string, string][] = [];
  if (view.stream !== "stdout") parts.push(["stream", view.stream]);
  if (view.attempt) parts.push(["attempt", String(view.attempt)]);
  if (view.role) parts.push(["role", view.role], ["index", String(view.index)]);
  return parts;
}

/** Return the query of the stream of updates: the job, and its output if that is shown. */
export function liveQuery(jid: string, view: JobView, tail: number): string {
  const query = new URLSearchParams({ computeJid: jid });
  if (view.tab === "log") {
    query.set("logs", jid);
    query.set("tail", String(tail));
    for (const [name, value] of taskQuery(view)) query.set(name, value);
  }
  return `?${query}`;
}
