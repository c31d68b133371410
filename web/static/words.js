// What the page says about a run, in plain words: one word for its state, one sentence for why. Pure.

import { plain } from "./terminal.js";

const NAMES = {
  pending: "waiting", running: "running", completed: "completed", canceled: "canceled", error: "failed", missing: "not there",
  job_run_purged: "cleared away",
};
/** Of those that are neither good nor bad, none. */
const TONES = { pending: "wait", running: "go", completed: "good", error: "bad" };

const ENDS = {
  timeLimit: "it was stopped at its time limit", queueLimit: "it waited longer than it was allowed to",
  lost: "nobody knows what became of it", shutdown: "the machine that it ran on was shut down",
  scheduler: "the cluster's scheduler ended it",
  startFailed: "it could not be started", agentStartFailed: "the agent that should have run it could not be started",
};
const GONE = {
  noRun: "There is no such run.", runDirNotFound: "It was computed once, but its files are gone. Start it again to have them back.",
  "computeJobSerial-mismatch": "Another run has taken its place.", "computeJobHash-mismatch": "A run with other values has taken its place.",
};

/** What Slurm has of it: where, and as which job. */
export function batchOf(status) {
  const { batch } = status;
  if (!batch) return "";
  const said = [batch.cluster && `on ${batch.cluster}`, batch.jobId && `Slurm job ${batch.jobId}`, batch.partition && `partition ${batch.partition}`];
  if (batch.state) said.push(batch.reason && batch.reason !== "None" ? `${batch.state} (${batch.reason})` : batch.state);
  if (batch.nodes) said.push(`nodes ${batch.nodes}`);
  if (isActive(status) && batch.startsAt && status.state === "pending") said.push(`expected to start at ${moment(batch.startsAt)}`);
  return said.filter(Boolean).join(" · ");
}

export const isActive = (status) => status.state === "pending" || status.state === "running";

export const stateName = (status) => (isActive(status) && status.known === false ? "not known" : (NAMES[status.state] ?? status.state));

export const tone = (status) => (isActive(status) && status.known === false ? "wait" : (TONES[status.state] ?? ""));

/** One sentence: what it does, waits for, or how it ended. */
export function sentence(status) {
  if (isActive(status) && status.known === false) {
    if (status.signIn) return `${sentenceOf(status.signIn.sentence ?? "nobody is signed in there")} It goes on, and will be heard of after that.`;
    return "Its agent cannot be asked at the moment, so nobody can say how far it is. It goes on, and will be heard of again.";
  }
  switch (status.state) {
    case "pending":
      return sentenceOf(status.jobStatusMessage ?? "it will start in a moment");
    case "running":
      if (status.queueState === "ending") return sentenceOf(status.jobStatusMessage ?? "it has ended, and is being cleaned up");
      return status.queueState === "stopping" ? "It is being stopped." : "It is being computed.";
    case "completed":
      return status.resultError ? `It was computed, but its result cannot be shown: ${plain(status.resultError.error)}.` : "It was computed.";
    case "canceled":
      return status.canceledAfterSecs
        ? `It was stopped at its limit of ${duration(status.canceledAfterSecs)}.`
        : sentenceOf(ENDS[status.reason] ?? "it was canceled");
    case "error":
      return sentenceOf(explained(status) ?? status.error ?? ENDS[status.reason] ?? "it failed and did not say why; the log may");
    case "missing":
      return GONE[status.reason] ?? "There is no such run.";
    case "job_run_purged":
      return "Its files have been cleared away. Start it again to have them back.";
    default:
      return sentenceOf(String(status.state));
  }
}

/** What a bare exit code or signal means; nothing where the run said by itself what went wrong, which tells its user more. */
const explained = ({ why, error }) => (why && (!error || /^(exit code|ended by signal) \d/.test(error)) ? why.sentence : undefined);

/** Begins with a capital letter and ends with a full stop. */
export function sentenceOf(text) {
  const said = plain(String(text)).trim();
  if (!said) return "";
  return said[0].toUpperCase() + said.slice(1) + (/[.!?…]$/.test(said) ? "" : ".");
}

/** 8.3 s, 2 min 05 s, 3 h 07 min. */
export function duration(secs) {
  if (secs === null || secs === undefined || !Number.isFinite(secs)) return "";
  if (secs < 60) return `${secs.toFixed(1)} s`;
  const whole = Math.floor(secs);
  const two = (n) => String(n).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

export const percentText = (status) => (Number.isFinite(status.percentComplete) ? `${Math.floor(status.percentComplete)} %` : "");

/** The time of day, with the day where that is not today. at: unix seconds. */
export function moment(at) {
  if (!at) return "";
  const when = new Date(at * 1000);
  const today = when.toDateString() === new Date().toDateString();
  const time = when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return today ? time : `${when.toLocaleDateString([], { day: "numeric", month: "short" })} ${time}`;
}

/** Bytes as people read them. */
export function size(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  return bytes < 1024 ** 2 ? `${(bytes / 1024).toFixed(1)} KB` : `${(bytes / 1024 ** 2).toFixed(1)} MB`;
}
