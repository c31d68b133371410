/** Title, state, times and actions of a job. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { ApiError, data, requestId } from "../api.ts";
import { CancelDialog } from "../cancel.tsx";
import { copyText } from "../clipboard.ts";
import { now } from "../clock.ts";
import { isActive, type JobRow, type Status, titleOf } from "../jobs.ts";
import { isAdmin } from "../me.ts";
import { isOwn, jobPath, path } from "../site.ts";
import { duration, moment, plural, sentence } from "../text/format.ts";
import { plainCommand } from "../text/shown_command.ts";
import { notify } from "./frame.tsx";
import { Icon } from "./icons.tsx";
import { wantedShell } from "./shell.tsx";
import { StateBadge } from "./state.tsx";
import { Tags } from "./tags.tsx";
import type { Task } from "./tasks.tsx";

export function JobHead(props: {
  jid: string;
  status: Status;
  row: JobRow | undefined;
  tasks: Task[];
  onChanged: () => void;
}): JSX.Element {
  const { jid, status, row } = props;
  return (
    <header class="job-head">
      <p class="crumb">
        <a href={path("/jobs")}>Jobs</a> <span aria-hidden="true">/</span> <CopyId jid={jid} />
      </p>
      <div class="page-head">
        <h1>{row ? titleOf(row) : jid}</h1>
        <StateBadge state={status.state} />
        <Actions {...props} />
      </div>
      {status.debugging && <p class="debugging">{sentence(status.debugging)}</p>}
      {row?.name && row.command && <code class="command">{plainCommand(row.command)}</code>}
      <Facts jid={jid} status={status} row={row} onChanged={props.onChanged} />
    </header>
  );
}

function CopyId({ jid }: { jid: string }): JSX.Element {
  return (
    <button
      type="button"
      class="plain mono copy"
      title="Copy the id"
      onClick={() => {
        void copyText(jid).then(
          () => notify("The id is copied."),
          () => notify("The browser does not permit to copy the id.", true),
        );
      }}
    >
      {jid} <Icon name="copy" />
    </button>
  );
}

/** How far a run is, as a bar, with the frames that are there. */
function ProgressFact({ status }: { status: Status }): JSX.Element | null {
  const { percentComplete, frameCount } = status.parallelStatus ?? {};
  if (status.state !== "running" || percentComplete === undefined) return null;
  const frames = frameCount ? `, ${plural(frameCount, "frame")}` : "";
  return (
    <div>
      <dt>Progress</dt>
      <dd class="number job-progress">
        <progress aria-label="Progress" max={100} value={percentComplete} />
        {Math.round(percentComplete)} %{frames}
      </dd>
    </div>
  );
}

function Facts(props: {
  jid: string;
  status: Status;
  row: JobRow | undefined;
  onChanged: () => void;
}): JSX.Element {
  const { jid, status, row, onChanged } = props;
  const started = status.computeJobStart;
  const ended = status.computeJobEnd;
  const facts: [string, string][] = [];
  if (status.computeJobQueued) facts.push(["Submitted", moment(status.computeJobQueued)]);
  if (started) facts.push(["Started", moment(started)]);
  if (ended) facts.push(["Ended", moment(ended)]);
  if (started) facts.push(["Duration", duration((ended ?? now.value) - started)]);
  else if (status.state === "pending" && status.computeJobQueued) {
    facts.push(["Waiting for", duration(now.value - status.computeJobQueued)]);
  }
  if (row && !isOwn(row.jid)) facts.push(["User", row.uid]);
  if (row) facts.push(["Driver", row.driver]);
  if (row?.queue) facts.push(["Queue", row.queue]);
  if (row && row.simulationType !== "command") facts.push(["App", row.simulationType]);
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd class="number">{value}</dd>
        </div>
      ))}
      <ProgressFact status={status} />
      <Tags jid={jid} tags={status.tags ?? []} onChanged={onChanged} />
    </dl>
  );
}

function Actions(props: {
  jid: string;
  status: Status;
  tasks: Task[];
  onChanged: () => void;
}): JSX.Element {
  const { jid, status, onChanged } = props;
  const [canceling, setCanceling] = useState(false);
  const held = props.tasks.some((t) => t.heldUntil);
  const { route } = useLocation();
  // a shell acts as the user, which administrators of groups may not
  const mayEnter = isOwn(jid) || isAdmin();
  const act = (what: string, name: string, body: object): void => {
    void perform(what, name, { computeJid: jid, ...body }, onChanged);
  };
  return (
    <div class="buttons actions">
      {held && (
        <button type="button" onClick={() => act("Released", "run-release", {})}>
          Release
        </button>
      )}
      {isActive(status.state) ? (
        <button type="button" class="danger" onClick={() => setCanceling(true)}>
          Cancel …
        </button>
      ) : isOwn(jid) ? (
        <button
          type="button"
          onClick={() => act("Started again", "job-retry", { reqId: requestId() })}
        >
          Run again
        </button>
      ) : null}
      {mayEnter && (held || status.state === "running") && (
        <button
          type="button"
          onClick={() => {
            wantedShell.value = jid;
            route(`${jobPath(jid)}?tab=shell`);
          }}
        >
          Shell
        </button>
      )}
      {isOwn(jid) && (
        <a class="button" href={`${jobPath(jid)}?tab=parameters&edit=1`}>
          Clone and edit
        </a>
      )}
      {canceling && (
        <CancelDialog jids={[jid]} onClose={() => setCanceling(false)} onDone={onChanged} />
      )}
    </div>
  );
}

/** Send an action. One that was not done is said, and can be repeated with the same id. */
async function perform(what: string, name: string, body: object, done: () => void): Promise<void> {
  try {
    await data(name, body);
    notify(`${what}.`);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    notify(`Not done. ${sentence(error.message)} ${sentence(error.advice)}`, true, {
      label: "Try again",
      run: () => void perform(what, name, body, done),
    });
  }
  done();
}
