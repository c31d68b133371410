/** What attempts of a job have. Pure. */

import { duration, sentence } from "./format.ts";

export interface Attempt {
  number: number;
  endedAt?: number | null;
  /** In one word. */
  reason?: string | null;
  decided?: { reason: string; role?: string | null; index?: number | null } | null;
  retry?: { delaySecs: number; reason: string } | null;
  notRetried?: string | null;
}

/** Return what decided an attempt, and why another one followed or not. */
export function attemptText({ decided, retry, notRetried }: Attempt): string {
  const by = decided?.role ? `${decided.role}/${decided.index ?? 0}: ` : "";
  const wait = retry && retry.delaySecs >= 1 ? ` after ${duration(retry.delaySecs)}` : "";
  return [
    decided && sentence(by + decided.reason),
    retry && sentence(`Retried${wait}: ${retry.reason}`),
    notRetried && sentence(`Not retried: ${notRetried}`),
  ]
    .filter(Boolean)
    .join(" ");
}
