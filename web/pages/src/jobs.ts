/** The supervisor's answers about jobs, as far as the pages use them, and words for states. */

import { plainCommand } from "./text/shown_command.ts";

export interface JobRow {
  jid: string;
  uid: string;
  state: string;
  serial: number;
  simulationType: string;
  kind: string;
  driver: string;
  queuedAt: number;
  startedAt: number | null;
  endedAt: number | null;
  reason: string | null;
  position: number;
  command: string | null;
  name: string | null;
  queue: string | null;
}

export interface SearchReply {
  jobs: JobRow[];
  next: string | null;
  searchedUntil: number | null;
}

export interface Why {
  cause?: string | null;
  confidence?: string | null;
  sentence?: string;
  try?: string[];
}

export interface Progress {
  percentComplete?: number;
  frameCount?: number;
}

export interface Status {
  state: string;
  computeJid: string;
  computeJobSerial?: number;
  computeJobQueued?: number;
  computeJobStart?: number | null;
  computeJobEnd?: number | null;
  reason?: string | null;
  error?: string | null;
  known?: boolean;
  over?: boolean;
  position?: number;
  queueState?: string | null;
  jobStatusMessage?: string | null;
  parallelStatus?: Progress | null;
  why?: Why | null;
  tags?: string[];
  /** The warning of a job with remote debugging. */
  debugging?: string | null;
}

/** Return whether this status was said before the last one. */
export const isOlder = (said: Status, last: Status | undefined): boolean =>
  (said.position ?? 0) < (last?.position ?? 0);

/** Return what is known after an answer. isCrossed: `last` was heard while it was under way. */
export function answeredStatus(last: Status | undefined, said: Status, isCrossed: boolean): Status {
  if (!last || !isCrossed) return said;
  if (isOlder(said, last)) return last;
  const isSameRun = said.computeJobSerial === last.computeJobSerial && isActive(said.state);
  return isSameRun && last.parallelStatus ? { ...said, parallelStatus: last.parallelStatus } : said;
}

export interface ProgressEvent {
  computeJid: string;
  computeJobSerial: number;
  parallelStatus: Progress;
}

const WORDS: Record<string, string> = {
  pending: "waiting",
  running: "running",
  completed: "completed",
  canceled: "canceled",
  error: "failed",
  missing: "missing",
  job_run_purged: "cleared away",
};

export const stateWord = (state: string): string => WORDS[state] ?? state;

export const isActive = (state: string): boolean => state === "pending" || state === "running";

export const titleOf = (row: Pick<JobRow, "name" | "command" | "simulationType">): string =>
  row.name || plainCommand(row.command ?? "") || row.simulationType;

/** Return the seconds that a run has taken so far; null before its start. */
export function secondsOf(row: Pick<JobRow, "startedAt" | "endedAt">, now: number): number | null {
  return row.startedAt === null ? null : Math.max(0, (row.endedAt ?? now) - row.startedAt);
}

/** Return the row with a newer status. */
export function withStatus(row: JobRow, status: Status): JobRow {
  if ((status.position ?? 0) < row.position) return row;
  return {
    ...row,
    state: status.state,
    serial: status.computeJobSerial ?? row.serial,
    queuedAt: status.computeJobQueued ?? row.queuedAt,
    startedAt: status.computeJobStart ?? null,
    endedAt: status.computeJobEnd ?? null,
    reason: status.reason ?? null,
    position: status.position ?? row.position,
  };
}
