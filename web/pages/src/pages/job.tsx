/** The page of one job: summary with the cause first, output, tasks, events and files. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useLocation, useRoute } from "preact-iso";
import { ask, data } from "../api.ts";
import { type JobRow, type SearchReply, type Status, titleOf } from "../jobs.ts";
import { useLive } from "../live.ts";
import { Events } from "../parts/events.tsx";
import { Files } from "../parts/files.tsx";
import { Frame } from "../parts/frame.tsx";
import { JobHead } from "../parts/job_head.tsx";
import { Log, type LogState } from "../parts/log.tsx";
import { Empty, ErrorMessage, Loading } from "../parts/messages.tsx";
import { Resources } from "../parts/resources.tsx";
import { Tabs } from "../parts/tabs.tsx";
import { type TasksReply, TasksTable } from "../parts/tasks.tsx";
import { Timeline } from "../parts/timeline.tsx";
import { WhyCard, type WhyReply } from "../parts/why.tsx";
import { useRemote } from "../remote.ts";
import { isOwn, jobPath, ownerOf, path } from "../site.ts";
import {
  formatView,
  type JobView,
  liveQuery,
  parseView,
  TABS,
  type Tab,
} from "../text/job_view.ts";
import {
  isOther,
  isRepeated,
  type LogPiece,
  type LogPlace,
  NO_PLACE,
  placeAfter,
} from "../text/log_place.ts";
import { TerminalText } from "../text/terminal.ts";

/** Bytes of earlier output with which the log begins. */
const TAIL = 262_144;
/** Answers about a job that does not exist, is another user's, or whose id is invalid. */
const MISSING = [400, 403, 404];
const LABELS: Record<Tab, string> = {
  log: "Log",
  tasks: "Tasks",
  timeline: "Timeline",
  usage: "Usage",
  events: "Events",
  files: "Files",
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
  const status = useRemote<Status>(jid, (signal) => data("run-status", named, signal));
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
        const { parallelStatus } = event as Status;
        status.patch((s) => ({ ...s, parallelStatus: parallelStatus ?? null }));
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
  if (status.error && MISSING.includes(status.error.http)) return <Missing jid={jid} />;
  return (
    <Frame title={title}>
      {status.error && <ErrorMessage error={status.error} again={status.reload} />}
      {status.data ? (
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
            {view.tab === "log" && (
              <Log
                jid={jid}
                view={view}
                log={log.state}
                tasks={tasks.data?.tasks ?? []}
                attempts={(tasks.data?.attempts ?? []).map((a) => a.number)}
                onChange={change}
              />
            )}
            {view.tab === "tasks" && <TasksTable reply={tasks.data} view={view} jid={jid} />}
            {view.tab === "timeline" && <Timeline jid={jid} position={status.data.position} />}
            {view.tab === "usage" && <Resources jid={jid} active={!status.data.over} />}
            {view.tab === "events" && <Events jid={jid} position={status.data.position} />}
            {view.tab === "files" && <Files jid={jid} active={!status.data.over} />}
          </Tabs>
        </>
      ) : (
        !status.error && <Loading what="the job" />
      )}
    </Frame>
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

const noLog = (): LogState => ({ text: new TerminalText(), skipped: 0, ended: false, read: false });

/** Collect the output: from the stream, or by requests where the site has no stream. */
function useLog(
  jid: string,
  view: JobView,
  key: string,
): { state: LogState; add: (piece: LogPiece) => void; ask: (serial: number) => Promise<void> } {
  const [state, setState] = useState<LogState>(noLog);
  const place = useRef<LogPlace>(NO_PLACE);
  useEffect(() => {
    setState(noLog());
    place.current = NO_PLACE;
  }, [key]);
  const add = (piece: LogPiece): void => {
    const begins = isOther(place.current, piece);
    if (isRepeated(place.current, piece)) return;
    place.current = placeAfter(piece);
    setState((last) => {
      const log = begins ? noLog() : last;
      log.text.append(piece.text);
      return {
        text: log.text,
        skipped: begins ? piece.offset : log.skipped,
        ended: piece.end,
        read: true,
      };
    });
  };
  const askForMore = async (serial: number, fromTail = false): Promise<void> => {
    if (view.tab !== "log" || !serial) return;
    const { next } = place.current;
    const goesOn = serial === place.current.serial && !fromTail;
    const response = await ask("/page-data/job-log", {
      computeJid: jid,
      computeJobSerial: serial,
      stream: view.stream,
      attempt: view.attempt,
      ...(view.role ? { role: view.role, index: view.index } : {}),
      ...(goesOn ? { offset: next } : { tail: TAIL }),
    }).catch(() => undefined);
    if (!response) return;
    const number = (name: string): number => Number(response.headers.get(`X-Jobscribe-${name}`));
    const piece: LogPiece = {
      computeJobSerial: serial,
      attempt: number("Attempt"),
      offset: number("Offset"),
      nextOffset: number("Next-Offset"),
      dropped: number("Dropped"),
      text: await response.text(),
      end: response.headers.get("X-Jobscribe-End") === "true",
    };
    // the offset was that of an earlier attempt
    if (goesOn && isOther(place.current, piece)) return askForMore(serial, true);
    add(piece);
  };
  return { state, add, ask: askForMore };
}
