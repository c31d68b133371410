/** Texts and bytes of the terminal in the page of a job. Pure. */

/** The state of a shell. ended: by itself, with its exit. lost: nobody can use it any more. */
export type ShellState =
  | { name: "opening" }
  | { name: "open" }
  | { name: "resuming" }
  | { name: "ended"; code: number | null; signal: number | null; detail: string }
  | { name: "lost"; why: string };

/** A part of the output: bytes in base64 from `offset` on, and with `end` the exit. */
export interface ShellPart {
  offset: number;
  data: string;
  end: boolean;
  code: number | null;
  signal: number | null;
  detail: string;
}

export const isOver = (state: ShellState): boolean =>
  state.name === "ended" || state.name === "lost";

/** Return the sentence about a state. The exit status is that of the command `job shell`. */
export function stateText(state: ShellState, task: string): string {
  switch (state.name) {
    case "opening":
      return `Opening a shell in ${task} …`;
    case "open":
      return `Connected to ${task}.`;
    case "resuming":
      return "Connection lost, resuming …";
    case "lost":
      return state.why;
    case "ended":
      if (state.code !== null) return `The shell has ended with exit status ${state.code}.`;
      if (state.signal === null)
        return `The shell has ended: ${state.detail || "no exit is known"}.`;
      return `The shell was ended by signal ${state.signal}, exit status ${128 + state.signal}.`;
  }
}

export const bytesOf = (base64: string): Uint8Array =>
  Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));

export const base64Of = (bytes: Uint8Array): string =>
  btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join(""));

export function joined(one: Uint8Array, two: Uint8Array): Uint8Array {
  const both = new Uint8Array(one.length + two.length);
  both.set(one);
  both.set(two, one.length);
  return both;
}

export interface ShellTask {
  role: string;
  index: number;
  state: string;
  heldUntil?: number | null;
}

/** Return the task that a shell enters: the named one, or else the held, failed or first one. */
export function enteredTask<T extends ShellTask>(
  tasks: readonly T[],
  role: string,
  index: number,
): T | undefined {
  const named = tasks.find((t) => t.role === role && t.index === index);
  if (named) return named;
  const failed = tasks.filter((t) => t.state === "failed");
  return tasks.find((t) => t.heldUntil) ?? (failed.length === 1 ? failed[0] : tasks[0]);
}
