/** What is heard of a run of an app: which news count, and how they are said. Pure. */

import type { AppStatus } from "../apps.ts";
import type { Status } from "../jobs.ts";
import { isActive } from "../jobs.ts";
import { duration, plural, sentence } from "./format.ts";

/** What only the system knows, whatever the run reports. */
const OURS = new Set(
  (
    "state reason error known since over superseded queueState jobStatusMessage elapsedTime " +
    "canceledAfterSecs computeJid computeJobHash computeJobSerial computeJobQueued " +
    "computeJobStart computeJobEnd computeJobPosition attempt exit runDir position nextRequest " +
    "nextRequestSeconds resultError batch signIn srException why"
  ).split(" "),
);

const reported = (report: object | null | undefined): Partial<AppStatus> =>
  Object.fromEntries(Object.entries(report ?? {}).filter(([name]) => !OURS.has(name)));

/** A status of the stream in the form of an answer: its report is beside the other fields. */
export function fromStream(said: Status): AppStatus {
  const { parallelStatus, position, ...rest } = said as Status & Record<string, unknown>;
  const known = Object.entries(rest).filter(([, value]) => value !== null);
  const own = Object.fromEntries(known) as unknown as AppStatus;
  if (position !== undefined) own.computeJobPosition = position;
  return { ...reported(parallelStatus), ...own };
}

/**
 * Return what is known after `said`. Late news never make a run younger and never undo its end; a
 * status without a report keeps the last report. isAnswer: it leaves nothing out.
 */
export function heard(last: AppStatus | undefined, said: AppStatus, isAnswer: boolean): AppStatus {
  if (!last || said.computeJid !== last.computeJid) return said;
  const [before, serial] = [last.computeJobSerial ?? 0, said.computeJobSerial ?? 0];
  if (serial && serial < before) return last;
  if (serial !== before) return said;
  if (isActive(said.state) && !isActive(last.state)) return last;
  const [old, young] = [last.computeJobPosition ?? 0, said.computeJobPosition];
  if (young !== undefined && young < old) return last;
  if (isAnswer) return { ...kept(last), ...said };
  const { signIn, ...rest } = last;
  const without = Object.fromEntries(Object.entries(rest).filter(([name]) => !OURS.has(name)));
  const mayKeep = said.known === false || said.queueState === "sign_in";
  const hash = said.computeJobHash ?? last.computeJobHash;
  return {
    ...without,
    ...(hash ? { computeJobHash: hash } : {}),
    ...(signIn && mayKeep && isActive(said.state) ? { signIn } : {}),
    ...said,
  };
}

/** Return what is known after an answer. isCrossed: `last` was heard while it was under way. */
export function answered(
  last: AppStatus | undefined,
  said: AppStatus,
  isCrossed: boolean,
): AppStatus {
  const next = heard(last, said, true);
  const isSameRun = next.computeJobSerial === last?.computeJobSerial && isActive(next.state);
  return last && isCrossed && isSameRun ? { ...next, ...kept(last) } : next;
}

const kept = ({ frameCount, frameTotal, percentComplete }: AppStatus): Partial<AppStatus> => ({
  ...(frameCount === undefined ? {} : { frameCount }),
  ...(frameTotal === undefined ? {} : { frameTotal }),
  ...(percentComplete === undefined ? {} : { percentComplete }),
});

/** Return what is known after a report of the run. */
export function progressed(last: AppStatus, serial: number, report: object | null): AppStatus {
  if (serial !== last.computeJobSerial || !isActive(last.state)) return last;
  return { ...last, ...reported(report) };
}

/** Return how far the run is: "2 of 60 frames"; "" if nothing is known. */
export function progressText(status: AppStatus): string {
  const { frameCount = 0, frameTotal, percentComplete } = status;
  if (frameCount > 0 && frameTotal && frameTotal >= frameCount) {
    return `${frameCount.toLocaleString()} of ${plural(frameTotal, "frame")}`;
  }
  const percent = percentComplete === undefined ? "" : `${Math.floor(percentComplete)} %`;
  if (frameCount > 0)
    return percent ? `${plural(frameCount, "frame")}, ${percent}` : plural(frameCount, "frame");
  return status.state === "running" ? percent : "";
}

const GONE: Record<string, string> = {
  noRun: "",
  runDirNotFound: "It was computed, but its files are gone. Start it again to have them back.",
};

/** One sentence about a run that needs no explanation of its own; "" if its state says it all. */
export function sentenceOf(status: AppStatus): string {
  const { state, known, signIn, resultError, reason = "" } = status;
  if (isActive(state)) {
    if (known !== false) return activity(status);
    return signIn
      ? `${sentence(signIn.sentence ?? "nobody is signed in there")} The run goes on.`
      : "Its agent cannot be asked at the moment. The run goes on.";
  }
  if (state === "completed" && resultError) {
    return `The result cannot be shown: ${sentence(resultError.error)}`;
  }
  if (state === "missing") return GONE[reason] ?? "There is no such run.";
  if (state === "job_run_purged") {
    return "Its files have been cleared away. Start it again to have them back.";
  }
  return status.canceledAfterSecs
    ? `It was stopped at its limit of ${duration(status.canceledAfterSecs)}.`
    : "";
}

function activity({ state, queueState, jobStatusMessage }: AppStatus): string {
  if (state === "pending") return sentence(jobStatusMessage ?? "it starts in a moment");
  if (queueState === "ending") {
    return sentence(jobStatusMessage ?? "it has ended, and is being cleaned up");
  }
  return queueState === "stopping" ? "It is being stopped." : "";
}

/** What Slurm has of the run: where, and as which job. */
export function batchText({ batch, state }: AppStatus): string {
  if (!batch) return "";
  const { cluster, jobId, partition, reason, nodes } = batch as Record<string, string | undefined>;
  const why = reason && reason !== "None" ? ` (${reason})` : "";
  return [
    cluster && `on ${cluster}`,
    jobId && `Slurm job ${jobId}`,
    partition && `partition ${partition}`,
    batch.state && `${batch.state}${isActive(state) ? why : ""}`,
    nodes && `nodes ${nodes}`,
  ]
    .filter(Boolean)
    .join(" · ");
}
