/** The tasks of an attempt, and the attempts with the reasons of retries. */

import type { JSX } from "preact";
import { now } from "../clock.ts";
import { jobPath } from "../site.ts";
import { type Attempt, attemptText } from "../text/attempts.ts";
import { duration, moment } from "../text/format.ts";
import { formatView, type JobView } from "../text/job_view.ts";
import { Loading } from "./messages.tsx";
import { Table } from "./table.tsx";

export interface CoreFile {
  name: string;
  pid?: number;
  program?: string;
  signal?: number | null;
  size: number;
}

export interface Exit {
  code: number | null;
  signal: number | null;
  outOfMemory?: boolean;
  core?: { files?: CoreFile[] } | null;
}

export interface Task {
  role: string;
  index: number;
  state: string;
  host?: string | null;
  startedAt?: number | null;
  endedAt?: number | null;
  heldUntil?: number | null;
  exit?: Exit | null;
}

export interface TasksReply {
  attempt: number;
  attempts: Attempt[];
  tasks: Task[];
}

export function TasksTable(props: {
  reply: TasksReply | undefined;
  view: JobView;
  jid: string;
}): JSX.Element {
  const { reply, view, jid } = props;
  if (!reply) return <Loading what="tasks" />;
  if (reply.tasks.length === 0) return <p class="pad soft">No task has been placed yet.</p>;
  return (
    <>
      <Table
        label={`Tasks of attempt ${reply.attempt}`}
        heads={["Task", "State", "Host", "Started", "Duration", "Exit", "Log"]}
      >
        {reply.tasks.map((task) => (
          <TaskRow
            key={`${task.role}/${task.index}`}
            task={task}
            view={view}
            jid={jid}
            attempt={reply.attempt}
          />
        ))}
      </Table>
      {reply.attempts.length > 1 && <Attempts reply={reply} view={view} jid={jid} />}
    </>
  );
}

function TaskRow(props: { task: Task; view: JobView; jid: string; attempt: number }): JSX.Element {
  const { task, view, jid, attempt } = props;
  const log = formatView({ ...view, tab: "log", attempt, role: task.role, index: task.index });
  return (
    <tr>
      <th scope="row">
        {task.role}/{task.index}
      </th>
      <td>{task.heldUntil ? `held until ${moment(task.heldUntil)}` : task.state}</td>
      <td>{task.host ?? "–"}</td>
      <td class="number">{task.startedAt ? moment(task.startedAt) : "–"}</td>
      <td class="number">
        {task.startedAt ? duration((task.endedAt ?? now.value) - task.startedAt) : "–"}
      </td>
      <td>{exitText(task.exit)}</td>
      <td>
        <a href={jobPath(jid) + log} aria-label={`Log of ${task.role}/${task.index}`}>
          Log
        </a>
      </td>
    </tr>
  );
}

function exitText(exit: Exit | null | undefined): string {
  if (!exit) return "–";
  const how = exit.signal ? `signal ${exit.signal}` : `code ${exit.code ?? "?"}`;
  return exit.outOfMemory ? `${how}, out of memory` : how;
}

function Attempts({
  reply,
  view,
  jid,
}: {
  reply: TasksReply;
  view: JobView;
  jid: string;
}): JSX.Element {
  return (
    <div class="pad">
      <h2 class="small">Attempts</h2>
      <ol class="attempts">
        {reply.attempts.map((a) => (
          <li key={a.number} aria-current={a.number === reply.attempt ? "true" : undefined}>
            <a href={jobPath(jid) + formatView({ ...view, attempt: a.number })}>
              Attempt {a.number}
            </a>
            <span class="soft">
              {a.endedAt ? ` ended ${moment(a.endedAt)}. ` : " is active. "}
              {attemptText(a)}
            </span>
          </li>
        ))}
      </ol>
    </div>
  );
}
