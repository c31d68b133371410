/** The page of one job: summary with the cause first, output, tasks, events and files. */

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { useLocation, useRoute } from "preact-iso";
import { ask, data } from "../api.ts";
import { type JobRow, type SearchReply, type Status, titleOf } from "../jobs.ts";
import { useLive } from "../live.ts";
import { Debug } from "../parts/debug.tsx";
import { Events } from "../parts/events.tsx";
import { Files } from "../parts/files.tsx";
import { Frame } from "../parts/frame.tsx";
import { JobHead } from "../parts/job_head.tsx";
import { Log, type LogState } from "../parts/log.tsx";
import { Empty, ErrorMessage, Loading } from "../parts/messages.tsx";
import { Parameters } from "../parts/parameters.tsx";
import { Resources } from "../parts/resources.tsx";
import { Shell } from "../parts/shell.tsx";
import { Tabs } from "../parts/tabs.tsx";
import { type Task, type TasksReply, TasksTable } from "../parts/tasks.tsx";
import { Timeline } from "../parts/timeline.tsx";
import { TAIL, useLog } from "../parts/use_log.ts";
import { WhyCard, type WhyReply } from "../parts/why.tsx";
import { useRemote, useTogether } from "../remote.ts";
import { isOwn, jobPath, ownerOf, path } from "../site.ts";
import { newest } from "../text/job_status.ts";
import {
  formatView,
  type JobView,
  liveQuery,
  parseView,
  TABS,
  type Tab,
} from "../text/job_view.ts";
import type { LogPiece } from "../text/log_place.ts";

/** Answers about a job that does not exist, is another user's, or whose id is invalid. */
const MISSING = [400, 403, 404];
/** What a job has no more after its files have been cleared away. */
const GONE: Tab[] = ["log", "files", "debug", "shell"];
const NO_TASKS: Task[] = [];
const LABELS: Record<Tab, string> = {
  log: "Log",
  tasks: "Tasks",
  timeline: "Timeline",
  usage: "Usage",
  parameters: "Parameters",
  events: "Events",
  files: "Files",
  debug: "Debug",
  shell: "Shell",
};

export function JobPage(): JSX.Element {
  const { jid = "" } = useRoute().params;
  // another job is another page, with a state of its own
  return <Job key={jid} jid={jid} />;
}

function Job({ jid }: { jid: string }): JSX.Element {
  const { url, route } = useLocation();
  const view = parseView(url.includes("?") ? url.slice(url.indexOf("?")) : "");
  const named = { computeJid: jid };
  const news = useRef<Status | undefined>(undefined);
  const status = useRemote<Status>(jid, async (signal) => {
    news.current = undefined;
    const answer = await data<Status>("run-status", named, signal);
    return newest(news.current, answer);
  });
  const row = useRemote<JobRow | undefined>(jid, async (signal) => {
    const asked = { text: jid, limit: 1 };
    const reply = isOwn(jid)
      ? await data<SearchReply>("job-search", asked, signal)
      : await data<SearchReply>("site/job-search", { ...asked, uid: ownerOf(jid) }, signal);
    return reply.jobs.find((r) => r.jid === jid);
  });
  const why = useRemote<WhyReply>(jid, (signal) => data("job-why", named, signal));
  const tasks = useRemote<TasksReply>(`${jid} ${view.attempt}`, (signal) =>
    data("job-tasks", { ...named, attempt: view.attempt }, signal),
  );
  const live = liveQuery(jid, view, TAIL);
  const log = useLog(jid, view, live);
  const isSilent = log.state.ended && log.state.text.blocks.length === 0;
  const looked = useRef(false);
  useEffect(() => {
    // a failed job without output has its message in the other stream
    const may = view.tab === "log" && view.stream === "stdout" && status.data?.state === "error";
    if (!may || !isSilent || looked.current) return;
    looked.current = true;
    void hasErrors(jid, view).then((found) => {
      const { pathname, search } = window.location;
      const isHere = pathname + search === jobPath(jid) + formatView(view);
      if (found && isHere) route(jobPath(jid) + formatView({ ...view, stream: "stderr" }), true);
    });
  });

  const onStatus = (next: Status): void => {
    const last = status.data;
    if (last && (next.position ?? 0) < (last.position ?? 0)) return;
    news.current = next;
    status.patch(() => next);
    if (next.position !== last?.position || next.jobStatusMessage !== last?.jobStatusMessage) {
      why.reload();
      tasks.reload();
    }
  };
  useLive(
    live,
    (name, event) => {
      if (name === "status") onStatus(event as Status);
      else if (name === "log") log.add(event as LogPiece);
      else if (name === "progress") {
        const parallelStatus = (event as Status).parallelStatus ?? null;
        const last = news.current ?? status.data;
        if (last) news.current = { ...last, parallelStatus };
        status.patch((s) => ({ ...s, parallelStatus }));
      }
    },
    () => {
      for (const remote of [status, why, tasks]) remote.reload();
      void log.ask(status.data?.computeJobSerial ?? 0);
    },
  );

  const change = (change: Partial<JobView>): void =>
    route(jobPath(jid) + formatView({ ...view, ...change }));
  const reload = (): void => {
    for (const remote of [status, why, tasks]) remote.reload();
  };
  const title = row.data ? titleOf(row.data) : jid;
  const isWhole = useTogether([status, row, why]);
  if (status.error && MISSING.includes(status.error.http)) return <Missing jid={jid} />;
  return (
    <Frame title={title}>
      {status.error && <ErrorMessage error={status.error} again={status.reload} />}
      {status.data && isWhole ? (
        <>
          <JobHead
            jid={jid}
            status={status.data}
            row={row.data}
            tasks={tasks.data?.tasks ?? []}
            onChanged={reload}
          />
          <WhyCard why={why.data} status={status.data} />
          <Tabs
            label="Parts of the job"
            items={TABS.map((name) => ({ name, label: LABELS[name] }))}
            selected={view.tab}
            onSelect={(tab) => change({ tab })}
          >
            <JobTab
              jid={jid}
              view={view}
              status={status.data}
              tasks={tasks.data}
              log={log.state}
              onChange={change}
            />
          </Tabs>
        </>
      ) : (
        !status.error && <Loading what="the job" />
      )}
    </Frame>
  );
}

/** The content of the selected tab. */
function JobTab(props: {
  jid: string;
  view: JobView;
  status: Status;
  tasks: TasksReply | undefined;
  log: LogState;
  onChange: (change: Partial<JobView>) => void;
}): JSX.Element {
  const { jid, view, status, tasks, log, onChange } = props;
  // an open shell goes on while other tabs are shown
  const hasShell = useRef(false);
  if (view.tab === "shell") hasShell.current = true;
  if (status.state === "job_run_purged" && GONE.includes(view.tab)) return <Purged />;
  return (
    <>
      {view.tab === "log" && (
        <Log
          jid={jid}
          view={view}
          log={log}
          tasks={tasks?.tasks ?? []}
          attempts={(tasks?.attempts ?? []).map((a) => a.number)}
          onChange={onChange}
        />
      )}
      {view.tab === "tasks" && <TasksTable reply={tasks} view={view} jid={jid} />}
      {view.tab === "timeline" && (
        <Timeline
          jid={jid}
          position={status.position}
          reason={status.state === "pending" ? (status.jobStatusMessage ?? undefined) : undefined}
        />
      )}
      {view.tab === "usage" && (
        <Resources
          jid={jid}
          active={!status.over}
          view={view}
          tasks={tasks?.tasks ?? NO_TASKS}
          attempts={(tasks?.attempts ?? []).map((a) => a.number)}
          onChange={onChange}
        />
      )}
      {view.tab === "parameters" && (
        <Parameters jid={jid} view={view} serial={status.computeJobSerial} />
      )}
      {view.tab === "events" && <Events jid={jid} position={status.position} />}
      {view.tab === "files" && <Files jid={jid} active={!status.over} view={view} />}
      {view.tab === "debug" && <Debug jid={jid} active={!status.over} view={view} tasks={tasks} />}
      {hasShell.current && (
        <div hidden={view.tab !== "shell"}>
          <Shell jid={jid} view={view} tasks={tasks} onChange={onChange} />
        </div>
      )}
    </>
  );
}

function Purged(): JSX.Element {
  return (
    <p class="pad soft">
      Output and files of this job have been cleared away. “Run again” makes them anew; parameters,
      events and usage are kept.
    </p>
  );
}

function Missing({ jid }: { jid: string }): JSX.Element {
  return (
    <Frame title="No such job">
      <Empty title="There is no such job, or it is not yours.">
        <p class="soft">
          Its id is <code>{jid}</code>.
        </p>
        <p>
          <a href={path("/jobs")}>All jobs</a>
        </p>
      </Empty>
    </Frame>
  );
}

/** Return whether the stream stderr of the shown task has output. */
async function hasErrors(jid: string, view: JobView): Promise<boolean> {
  const { attempt, role, index } = view;
  const task = role ? { attempt, role, index } : { attempt };
  const body = { computeJid: jid, stream: "stderr", ...task, limit: 1 };
  try {
    return (await (await ask("/page-data/job-log", body)).arrayBuffer()).byteLength > 0;
  } catch {
    return false; // the page shows the stream that was asked for
  }
}
