/** Agents with state, heartbeat, version, last error and the end of their logs. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { data } from "../../api.ts";
import { now } from "../../clock.ts";
import { useRemote } from "../../remote.ts";
import { jobPath } from "../../site.ts";
import { ago, bytes, plural, sentence } from "../../text/format.ts";
import { type AgentRow, brief, phaseState, phaseWord } from "../../text/site.ts";
import { pieces } from "../../text/terminal.ts";
import { Dialog } from "../dialog.tsx";
import { ErrorMessage, Loading } from "../messages.tsx";
import { Table } from "../table.tsx";
import { Badge, Nothing, Part } from "./part.tsx";

/** Bytes of the end of a log that are shown. */
const TAIL = 32_768;

interface LogReply {
  text: string;
  size: number;
  sentence: string;
}

export function Agents({ agents, all }: { agents: AgentRow[]; all: boolean }): JSX.Element {
  const [shown, setShown] = useState<string>();
  return (
    <Part title={all ? "Agents" : "Your agents"} note="Programs that start and watch runs">
      {agents.length === 0 ? (
        <Nothing>There is none. One starts with the first run.</Nothing>
      ) : (
        <Table
          label="Agents"
          class="flat agents"
          heads={[
            "Agent",
            "State",
            "Heartbeat",
            "Version",
            "Jobs",
            "Last error",
            { text: "Log", hidden: true },
          ]}
        >
          {agents.map((a) => (
            <tr key={a.agent}>
              <th scope="row">
                {a.driver}, {a.kind} on {a.host}
                <span class="sub">
                  {all && `${a.uid} · `}
                  {a.agentId}
                </span>
              </th>
              <td>
                <Badge state={phaseState(a.phase)} word={phaseWord(a.phase)} />
                {a.since !== null && <span class="sub"> {ago(a.since, now.value)}</span>}
              </td>
              <td class="number">
                {a.heartbeatSecs === null ? "–" : `${brief(a.heartbeatSecs)} ago`}
              </td>
              <td>{a.version ?? "–"}</td>
              <td>
                <Jobs jobs={a.jobs} />
              </td>
              <td class="last-error">{a.lastError ? sentence(a.lastError) : "–"}</td>
              <td>
                <button type="button" onClick={() => setShown(a.agent)}>
                  Log
                </button>
              </td>
            </tr>
          ))}
        </Table>
      )}
      {shown && <AgentLog agent={shown} onClose={() => setShown(undefined)} />}
    </Part>
  );
}

const NAMED = 3;

function Jobs({ jobs }: { jobs: string[] }): JSX.Element {
  if (!jobs.length) return <>–</>;
  return (
    <>
      {jobs.slice(0, NAMED).map((jid) => (
        <a key={jid} class="mono block" href={jobPath(jid)}>
          {jid.split("-")[1]}
        </a>
      ))}
      {jobs.length > NAMED && <span class="sub">{plural(jobs.length - NAMED, "more")}</span>}
    </>
  );
}

function AgentLog({ agent, onClose }: { agent: string; onClose: () => void }): JSX.Element {
  const [part, setPart] = useState<"agent" | "keeper">("agent");
  const log = useRemote<LogReply>(`${agent} ${part}`, (signal) =>
    data("site/agent-logs", { agent, part, tail: TAIL, limit: TAIL }, signal),
  );
  const text = log.data
    ? pieces(log.data.text)
        .map(([piece]) => piece)
        .join("")
    : "";
  return (
    <Dialog title={part === "agent" ? "Log of the agent" : "Log of its keeper"} onClose={onClose}>
      <div class="agent-log">
        {log.error && <ErrorMessage error={log.error} again={log.reload} />}
        {!log.data && !log.error && <Loading what="the log" />}
        {log.data && text === "" && (
          <p class="soft">{sentence(log.data.sentence || "the log is empty")}</p>
        )}
        {text !== "" && (
          <section class="log" tabIndex={0} aria-label="End of the log">
            <pre>{text}</pre>
          </section>
        )}
        {log.data && log.data.size > TAIL && (
          <p class="soft">
            The last {bytes(TAIL)} of {bytes(log.data.size)}.
          </p>
        )}
        <div class="buttons">
          <button type="button" onClick={log.reload}>
            Read again
          </button>
          <button type="button" onClick={() => setPart(part === "agent" ? "keeper" : "agent")}>
            {part === "agent" ? "Log of its keeper" : "Log of the agent"}
          </button>
          <button type="button" onClick={onClose}>
            Close
          </button>
        </div>
      </div>
    </Dialog>
  );
}
