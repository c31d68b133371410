/** Resource usage of a job: over time with what was requested, its efficiency, totals and peaks. */

import "./resources.css";
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { data } from "../api.ts";
import { now } from "../clock.ts";
import { useRemote } from "../remote.ts";
import type { DefinitionReply } from "../text/definition.ts";
import type { JobView } from "../text/job_view.ts";
import { type Amount, measures } from "../text/measures.ts";
import {
  askedBy,
  type Efficiency,
  efficiency,
  type Lived,
  NETWORK,
  type UsageReply,
  usagePlots,
} from "../text/usage_plots.ts";
import { ErrorMessage, Loading } from "./messages.tsx";
import { Plot } from "./plot.tsx";
import { Table } from "./table.tsx";

/** Samples of usage are no events, so the stream does not name them. */
const ASK_MS = 5000;

export function Resources(props: {
  jid: string;
  active: boolean;
  view: JobView;
  tasks: Lived[];
  /** Numbers of all attempts. */
  attempts: number[];
  onChange: (change: Partial<JobView>) => void;
}): JSX.Element {
  const { jid, active, view, tasks } = props;
  const { role, index, attempt } = view;
  const one = role ? { attempt, role, index } : { attempt };
  const usage = useRemote<UsageReply>(
    `usage ${jid} ${active} ${attempt}/${role}/${index}`,
    (signal) => data("job-metrics", { computeJid: jid, series: true, ...one }, signal),
    true,
  );
  const definition = useRemote<DefinitionReply>(`definition ${jid}`, (signal) =>
    data("job-definition", { computeJid: jid }, signal),
  );
  const { reload } = usage;
  useEffect(() => {
    if (!active) return;
    const timer = setInterval(reload, ASK_MS);
    return () => clearInterval(timer);
  }, [active, reload]);
  const [since, setSince] = useState(false);
  const asked = useMemo(() => askedBy(definition.data?.definition ?? {}), [definition.data]);
  const plots = useMemo(
    () =>
      usage.data
        ? usagePlots(
            usage.data,
            (t) => !role || (t.role === role && t.index === index),
            tasks,
            asked,
          )
        : [],
    [usage.data, role, index, tasks, asked],
  );
  if (usage.error) return <ErrorMessage error={usage.error} again={usage.reload} />;
  if (!usage.data || definition.loading) return <Loading what="the usage" />;
  const found = measures(usage.data);
  const cards = efficiency(usage.data, tasks, asked, now.value);
  const nothing = found.length === 0 && cards.length === 0;
  const drawn = plots.some((p) => p.x.values.length > 0);
  return (
    <div class="pad usage">
      <EfficiencyCards found={cards} />
      <div class="usage-head">
        <AttemptChoice {...props} />
        {tasks.length > 1 && (
          <label>
            <span class="hidden">Task</span>
            <select
              value={role ? `${role}/${index}` : ""}
              onChange={(e) => {
                const [name = "", n = "0"] = e.currentTarget.value.split("/");
                props.onChange({ role: name, index: Number(n) });
              }}
            >
              <option value="">All tasks</option>
              {tasks.map((t) => (
                <option value={`${t.role}/${t.index}`} key={`${t.role}/${t.index}`}>
                  {t.role}/{t.index}
                </option>
              ))}
            </select>
          </label>
        )}
        {drawn && (
          <label>
            <span class="hidden">Time axis</span>
            <select
              value={since ? "since" : "local"}
              onChange={(e) => setSince(e.currentTarget.value === "since")}
            >
              <option value="local">Local time</option>
              <option value="since">Time since start</option>
            </select>
          </label>
        )}
      </div>
      {drawn ? (
        <div class="usage-plots">
          {plots.map((plot) => (
            <Plot key={plot.title} plot={plot} since={since} sync={`usage ${jid}`} />
          ))}
        </div>
      ) : (
        <p class="plot-empty">{noPlots(active, nothing, isBatch(definition.data))}</p>
      )}
      {drawn && !plots.some((p) => p.title === NETWORK) && (
        <p class="soft">
          Network: not measured. Only a container with a network of its own is counted; other jobs
          share the network of their machine.
        </p>
      )}
      {!nothing && <Totals found={found} attempt={usage.data.attempt} folded={drawn} />}
    </div>
  );
}

const isBatch = (reply: DefinitionReply | undefined): boolean =>
  reply?.definition.driver === "sbatch" || "batch" in (reply?.definition ?? {});

function noPlots(active: boolean, nothing: boolean, batch: boolean): string {
  if (batch)
    return active
      ? "The first values arrive some seconds after the start. A job on several nodes is measured over time with Slurm 22.05 or later."
      : "No values over time are kept of this attempt. Totals are from Slurm's accounting.";
  if (active) return "The first values arrive a few seconds after the start.";
  return nothing ? "No usage is known." : "No values over time are kept of this attempt.";
}

function AttemptChoice(props: {
  view: JobView;
  attempts: number[];
  onChange: (change: Partial<JobView>) => void;
}): JSX.Element | null {
  const { view, attempts, onChange } = props;
  if (attempts.length < 2) return null;
  return (
    <label>
      <span class="hidden">Attempt</span>
      <select
        value={String(view.attempt)}
        onChange={(e) => onChange({ attempt: Number(e.currentTarget.value) })}
      >
        <option value="0">Latest attempt</option>
        {attempts.map((n) => (
          <option value={String(n)} key={n}>
            Attempt {n}
          </option>
        ))}
      </select>
    </label>
  );
}

function EfficiencyCards({ found }: { found: Efficiency[] }): JSX.Element | null {
  if (found.length === 0) return null;
  return (
    <dl class="efficiency">
      {found.map((e) => (
        <div key={e.name} data-advice={e.advice !== ""} data-good={(e.share ?? 0) >= 0.5}>
          <dt>{e.name} efficiency</dt>
          <dd class="number">
            {e.text}
            {e.advice && <span class="soft"> {e.advice}</span>}
          </dd>
        </div>
      ))}
    </dl>
  );
}

function Totals(props: {
  found: ReturnType<typeof measures>;
  attempt: number;
  folded: boolean;
}): JSX.Element {
  const table = <TotalsTable {...props} />;
  if (!props.folded) return table;
  return (
    <details class="usage-table">
      <summary>Totals and peaks</summary>
      {table}
    </details>
  );
}

function TotalsTable(props: { found: ReturnType<typeof measures>; attempt: number }): JSX.Element {
  const { found } = props;
  return (
    <Table
      label={`Resource usage of all tasks of attempt ${props.attempt}`}
      heads={["Resource", "Now, all tasks", "Total, all tasks", "Largest task"]}
    >
      {found.map((m) => (
        <tr key={m.name}>
          <th scope="row">{m.name}</th>
          <Cell amount={m.now} />
          <Cell amount={m.total} />
          <Cell amount={m.largest} />
        </tr>
      ))}
    </Table>
  );
}

function Cell({ amount }: { amount: Amount | undefined }): JSX.Element {
  return (
    <td class="number">
      {amount?.text ?? "–"}
      {amount?.note && <span class="soft"> {amount.note}</span>}
    </td>
  );
}
