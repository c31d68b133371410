/** Processes that wait for a debugger, core files of crashes, and profiles, with the commands that
 * open them. */

import "./debug.css";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { data } from "../api.ts";
import { now } from "../clock.ts";
import { useRemote } from "../remote.ts";
import { filePath, jobPath, ownerOf } from "../site.ts";
import { type Profile, profileOf } from "../text/flame.ts";
import { bytes, duration, sentence } from "../text/format.ts";
import { formatView, type JobView } from "../text/job_view.ts";
import { Command } from "./command.tsx";
import type { FilesReply } from "./files.tsx";
import { ProfileView } from "./flame.tsx";
import { Icon } from "./icons.tsx";
import { ErrorMessage, Loading } from "./messages.tsx";
import { Table } from "./table.tsx";
import type { TasksReply } from "./tasks.tsx";

interface Stop {
  id: string;
  role: string;
  index: number;
  kind: string;
  host: string;
  pid: number;
  file: string;
  line: number;
  function: string;
  error?: string;
  until: number;
  attached: boolean;
  /** Of a process of a parallel program. */
  rank?: number;
}

interface StopsReply {
  stops: Stop[];
  notes: string[];
}

/** Stops are no events. */
const ASK_MS = 5000;
const MOST_PROFILES = 1000;

export function Debug(props: {
  jid: string;
  active: boolean;
  view: JobView;
  tasks: TasksReply | undefined;
}): JSX.Element {
  const { jid, active, view } = props;
  return (
    <div class="pad debug">
      {active && <Stops jid={jid} />}
      <Profiles jid={jid} active={active} view={view} />
      <Cores jid={jid} tasks={props.tasks} />
    </div>
  );
}

function Stops({ jid }: { jid: string }): JSX.Element {
  const stops = useRemote<StopsReply>(`stops ${jid}`, (signal) =>
    data("site/debug-list", { uid: ownerOf(jid), computeJid: jid }, signal),
  );
  const { reload } = stops;
  useEffect(() => {
    const timer = setInterval(reload, ASK_MS);
    return () => clearInterval(timer);
  }, [reload]);
  return (
    <section>
      <h2>Processes that wait for a debugger</h2>
      {stops.error && <ErrorMessage error={stops.error} again={stops.reload} />}
      {!stops.data && !stops.error && <Loading what="the list" />}
      {stops.data?.stops.length === 0 && (
        <p class="soft">
          None. A job submitted with <code>--debug</code> waits at each <code>breakpoint()</code>.
        </p>
      )}
      {stops.data?.stops.map((stop) => (
        <div class="stop" key={stop.id}>
          <p>
            <strong>
              {leaf(stop.file)}:{stop.line} {stop.function}
            </strong>
            {stop.error && `: ${stop.error}`}
          </p>
          <p class="soft">
            {stop.role}/{stop.index}
            {stop.rank !== undefined && `, rank ${stop.rank}`}, process {stop.pid} on {stop.host},{" "}
            {stop.attached
              ? "a debugger is attached"
              : `continues by itself in ${duration(Math.max(0, stop.until - now.value))}`}
          </p>
          {!stop.attached && <Command text={`jobscribe debug attach ${stop.id}`} />}
        </div>
      ))}
      {stops.data?.notes.map((note) => (
        <p class="soft" key={note}>
          {sentence(note)}
        </p>
      ))}
    </section>
  );
}

const leaf = (file: string): string => file.slice(file.lastIndexOf("/") + 1);

function Profiles(props: { jid: string; active: boolean; view: JobView }): JSX.Element {
  const { jid, active, view } = props;
  const files = useRemote<FilesReply>(`profiles ${jid} ${active}`, (signal) =>
    data("run-files", { computeJid: jid, limit: MOST_PROFILES }, signal),
  );
  const found = (files.data?.files ?? []).flatMap((f) => profileOf(f) ?? []);
  const shown = found.find((p) => p.name === view.file);
  // a run that has not started has no directory
  const isEarly = files.error?.http === 409;
  return (
    <section>
      <h2>Profiles</h2>
      {files.error && !isEarly && <ErrorMessage error={files.error} again={files.reload} />}
      {!files.data && !files.error && <Loading what="profiles" />}
      {(files.data || isEarly) && found.length === 0 && (
        <p class="soft">
          None. Submit the job with <code>--profile cpu</code>, <code>mem</code> or <code>gpu</code>{" "}
          to record one.
        </p>
      )}
      {found.length > 0 && (
        <Table
          label="Profiles of the job"
          heads={["Task", "Attempt", "Tool", "Process", "Size", "Open", "Download"]}
        >
          {found.map((p) => (
            <ProfileRow key={p.name} jid={jid} profile={p} view={view} />
          ))}
        </Table>
      )}
      {shown && <ProfileView key={shown.name} jid={jid} profile={shown} />}
    </section>
  );
}

/** Profiles that a page can draw. Other formats belong to their tools. */
const isDrawn = (p: Profile): boolean => p.ending === "collapsed" || p.ending === "dat";

function ProfileRow(props: { jid: string; profile: Profile; view: JobView }): JSX.Element {
  const { jid, profile: p, view } = props;
  return (
    <tr aria-current={p.name === view.file ? "true" : undefined}>
      <th scope="row">{p.task}</th>
      <td class="number">{p.attempt}</td>
      <td>{p.tool}</td>
      <td>
        {p.program} {p.pid}
      </td>
      <td class="number">{bytes(p.size)}</td>
      <td>
        {isDrawn(p) ? (
          <a
            href={jobPath(jid) + formatView({ ...view, file: p.name })}
            aria-label={`${p.ending === "dat" ? "Curve" : "Flame graph"} of ${p.task} ${p.pid}`}
          >
            {p.ending === "dat" ? "Curve" : "Flame graph"}
          </a>
        ) : (
          <code>jobscribe profile open</code>
        )}
      </td>
      <td>
        <a
          class="icon-link"
          href={filePath(jid, p.name)}
          download
          target="_self"
          aria-label={`Download ${leaf(p.name)} of ${p.task}`}
        >
          <Icon name="download" />
        </a>
      </td>
    </tr>
  );
}

function Cores({ jid, tasks }: { jid: string; tasks: TasksReply | undefined }): JSX.Element {
  const found = (tasks?.tasks ?? []).flatMap((t) =>
    (t.exit?.core?.files ?? []).map((file) => ({ task: `${t.role}/${t.index}`, file })),
  );
  return (
    <section>
      <h2>Core files</h2>
      {found.length === 0 ? (
        <p class="soft">
          None. A job submitted with <code>--core</code> keeps the core file of a crash.
        </p>
      ) : (
        <>
          <Table
            label={`Core files of attempt ${tasks?.attempt}`}
            heads={["Number", "Task", "Program", "Process", "Size"]}
          >
            {found.map(({ task, file }, n) => (
              <tr key={`${task} ${file.name}`}>
                <td class="number">{n + 1}</td>
                <th scope="row">{task}</th>
                <td>{leaf(file.program ?? "")}</td>
                <td class="number">{file.pid ?? "–"}</td>
                <td class="number">{bytes(file.size)}</td>
              </tr>
            ))}
          </Table>
          <p class="soft">
            A core has the memory of the process, with its secrets, so it is not sent to a browser.
            These commands show its stack, and copy it:
          </p>
          <Command text={`jobscribe core stack ${jid} --attempt ${tasks?.attempt ?? 0}`} />
          <Command text={`jobscribe core fetch ${jid} --attempt ${tasks?.attempt ?? 0}`} />
        </>
      )}
    </section>
  );
}
