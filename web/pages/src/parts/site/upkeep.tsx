/** Retention with a dry run, and targets of notifications. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, data } from "../../api.ts";
import { now } from "../../clock.ts";
import { useRemote } from "../../remote.ts";
import { ago, bytes, duration, plural, sentence } from "../../text/format.ts";
import { notify } from "../frame.tsx";
import { ErrorMessage, Loading } from "../messages.tsx";
import { Table } from "../table.tsx";
import { Badge, Nothing, Part } from "./part.tsx";

interface Report {
  dryRun: boolean;
  startedAt: number;
  secs: number;
  inspected: number;
  failed: number;
  complete: boolean;
  kinds: Record<string, { count: number; files: number; bytes: number }>;
}

interface RetentionReply {
  total: Report;
  last: Report | null;
  current: Report | null;
  compactions: { done: number; failed: number; at: number | null; lastError: string | null };
}

const KINDS: Record<string, string> = {
  scripts: "Scripts of ended runs",
  evidence: "Evidence of ended runs",
  cores: "Core files",
  profiles: "Profiles",
  agentLogs: "Logs of agents",
  records: "Records of jobs",
};

export function Retention(): JSX.Element {
  const state = useRemote<RetentionReply>("retention", (signal) =>
    data("site/retention", {}, signal),
  );
  const [dry, setDry] = useState<Report>();
  const [busy, setBusy] = useState(false);
  const look = async (): Promise<void> => {
    setBusy(true);
    try {
      setDry((await data<{ report: Report }>("site/retention-sweep", { dryRun: true })).report);
    } catch (e) {
      if (!(e instanceof ApiError)) throw e;
      notify(`Not counted. ${sentence(e.message)}`, true);
    }
    setBusy(false);
  };
  if (state.error) return <ErrorMessage error={state.error} again={state.reload} />;
  if (!state.data) return <Loading what="retention" />;
  const { total, last, compactions } = state.data;
  const kinds = Object.keys({ ...total.kinds, ...dry?.kinds });
  return (
    <Part
      title="Retention"
      note={last?.startedAt ? `last pass ${ago(last.startedAt, now.value)}` : "no pass yet"}
      actions={
        <button type="button" disabled={busy} onClick={() => void look()}>
          {busy ? "Counting …" : "What would go now?"}
        </button>
      }
    >
      <Table
        label="What retention removed, and what would go now"
        class="flat retention"
        heads={["What", "Removed since the start", dry && "Would go now"]}
      >
        {kinds.map((kind) => (
          <tr key={kind}>
            <th scope="row">{KINDS[kind] ?? kind}</th>
            <Amount found={total.kinds[kind]} />
            {dry && <Amount found={dry.kinds[kind]} />}
          </tr>
        ))}
      </Table>
      <p class="pad soft" role="status">
        {dry && `A dry run of ${duration(dry.secs)}: nothing was removed. `}
        {total.failed > 0 &&
          `${plural(total.failed, "removal")} failed; the next pass tries again. `}
        {compactions.done > 0 &&
          `The event log was shortened ${plural(compactions.done, "time")}. `}
        {compactions.lastError && sentence(`the event log: ${compactions.lastError}`)}
      </p>
    </Part>
  );
}

function Amount({ found }: { found: { count: number; bytes: number } | undefined }): JSX.Element {
  if (!found?.count) return <td class="number soft">–</td>;
  return (
    <td class="number">
      {found.count.toLocaleString()} <span class="soft">({bytes(found.bytes)})</span>
    </td>
  );
}

interface Target {
  name: string;
  kind: string;
  to: string;
  on: string[];
  delivered: number;
  failed: number;
  givenUp: number;
  waiting: number;
  failingSince: number | null;
  lastError: string | null;
  nextTry: number | null;
  lastDelivered: number | null;
}

export function Notifications(): JSX.Element {
  const state = useRemote<{ targets: Target[]; unwritten: string | null }>("notify", (signal) =>
    data("site/notify", {}, signal),
  );
  const act = async (name: string, what: "test" | "retry"): Promise<void> => {
    try {
      const reply = await data<{ delivered?: boolean; said?: string; waiting?: number }>(
        `site/notify-${what}`,
        { name },
      );
      if (what === "retry") notify(`${plural(reply.waiting ?? 0, "message")} sent again now.`);
      else if (reply.delivered) notify(`${name} took the test message.`);
      else notify(`${name} did not take it: ${sentence(reply.said ?? "")}`, true);
    } catch (e) {
      if (!(e instanceof ApiError)) throw e;
      notify(`Not sent to ${name}. ${sentence(e.message)}`, true);
    }
    state.reload();
  };
  if (state.error?.code === "notFound") {
    return (
      <Part title="Notifications">
        <Nothing>
          None are configured. The setting <code>notify.file</code> names the file of targets.
        </Nothing>
      </Part>
    );
  }
  if (state.error) return <ErrorMessage error={state.error} again={state.reload} />;
  if (!state.data) return <Loading what="notifications" />;
  return (
    <Part title="Notifications">
      {state.data.unwritten && <p class="host-error pad">{sentence(state.data.unwritten)}</p>}
      {state.data.targets.length === 0 ? (
        <Nothing>There is no target.</Nothing>
      ) : (
        <Table
          label="Targets of notifications"
          heads={[
            "Target",
            "State",
            "Delivered",
            "Failed tries",
            "Waiting",
            "Last error",
            { text: "Actions", hidden: true },
          ]}
        >
          {state.data.targets.map((t) => (
            <tr key={t.name}>
              <th scope="row">
                {t.name} <span class="sub">{t.kind}</span>
              </th>
              <td>
                {t.failingSince === null ? (
                  <Badge state="completed" word="works" />
                ) : (
                  <Badge
                    state="error"
                    word={`fails since ${ago(t.failingSince, now.value).replace(" ago", "")}`}
                  />
                )}
              </td>
              <td class="number">{t.delivered.toLocaleString()}</td>
              <td class="number">{t.failed.toLocaleString()}</td>
              <td class="number">{t.waiting.toLocaleString()}</td>
              <td class="last-error">{t.lastError ? sentence(t.lastError) : "–"}</td>
              <td>
                <div class="buttons">
                  <button type="button" onClick={() => void act(t.name, "test")}>
                    Send a test
                  </button>
                  {t.waiting > 0 && (
                    <button type="button" onClick={() => void act(t.name, "retry")}>
                      Try now
                    </button>
                  )}
                </div>
              </td>
            </tr>
          ))}
        </Table>
      )}
    </Part>
  );
}
