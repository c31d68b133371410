/** Hosts of containers and Slurm clusters, with state and use. */

import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, data } from "../../api.ts";
import { now } from "../../clock.ts";
import { ago, duration, plural, sentence } from "../../text/format.ts";
import {
  type ClusterRow,
  type HostRow,
  isUsable,
  megabytes,
  nodeWord,
  type PartitionRow,
  partitionWords,
} from "../../text/site.ts";
import { notify } from "../frame.tsx";
import { Table } from "../table.tsx";
import { Badge, Meter, Nothing, Part } from "./part.tsx";

interface CheckReply {
  hosts: number;
  problems: string[];
}

/** Use each host as a run would, and say what is wrong. */
function CheckHosts(): JSX.Element {
  const [busy, setBusy] = useState(false);
  const check = async (): Promise<void> => {
    setBusy(true);
    try {
      const found = await data<CheckReply>("site/pool-check");
      for (const problem of found.problems) notify(sentence(problem), true);
      if (!found.problems.length)
        notify(`${plural(found.hosts, "host")} checked, nothing is wrong.`);
    } catch (e) {
      if (!(e instanceof ApiError)) throw e;
      notify(`Not checked. ${sentence(e.message)}`, true);
    }
    setBusy(false);
  };
  return (
    <button type="button" disabled={busy} onClick={() => void check()}>
      {busy ? "Checking …" : "Check hosts"}
    </button>
  );
}

export function Hosts(props: {
  hosts: HostRow[];
  actions?: (host: HostRow) => ComponentChildren;
}): JSX.Element {
  return (
    <Part title="Docker hosts" actions={<CheckHosts />}>
      <ul class="hosts">
        {props.hosts.map((host) => (
          <li key={`${host.driver} ${host.host}`} data-host={host.host}>
            <div class="host-head">
              <h3>{host.host}</h3>
              {host.state === "up" ? (
                <Badge state="completed" word="up" />
              ) : (
                <Badge state="error" word="down" />
              )}
              {host.drained && <Badge state="canceled" word="drained" />}
              <span class="soft">
                {ago(host.since, now.value)}
                {host.version && ` · Docker ${host.version}`}
                {host.plans.length > 0 && ` · for ${host.plans.join(", ")}`}
              </span>
              <div class="part-actions">{props.actions?.(host)}</div>
            </div>
            {host.drained?.reason && <p>{sentence(host.drained.reason)}</p>}
            {host.state === "down" && <p class="host-error">{sentence(host.detail)}</p>}
            <div class="meters">
              {Object.entries(host.slots).map(([kind, [used, total]]) =>
                total ? (
                  <Meter
                    key={kind}
                    label={`Slots, ${kind}`}
                    used={used}
                    total={total}
                    text={`${used} of ${total}`}
                  />
                ) : null,
              )}
              <Amount label="Cores of tasks" pair={host.cpu} format={String} />
              <Amount label="Memory of tasks" pair={host.memoryMb} format={megabytes} />
              <Amount label="GPUs" pair={host.gpus} format={String} />
              <Amount label="Memory of agents" pair={host.agentsMb} format={megabytes} />
            </div>
            <p class="sub">
              {plural(host.tasks, "container")} of tasks, {plural(host.agents, "agent")},{" "}
              {plural(host.runs, "run")} in agents
            </p>
          </li>
        ))}
      </ul>
    </Part>
  );
}

function Amount(props: {
  label: string;
  pair: [number, number | null];
  format: (value: number) => string;
}): JSX.Element | null {
  const [used, total] = props.pair;
  if (!total && !used) return null;
  const of = total === null ? "no limit" : `of ${props.format(total)}`;
  return (
    <Meter label={props.label} used={used} total={total} text={`${props.format(used)} ${of}`} />
  );
}

function PartitionState({ state }: { state: string | undefined }): JSX.Element {
  const [word, note] = partitionWords(state);
  return (
    <p class="partition-state">
      <Badge state="error" word={word} /> <span class="soft">{note}</span>
    </p>
  );
}

/** The nodes of a partition by state; those that take no jobs with the reason. */
function Nodes({ partition: p }: { partition: PartitionRow }): JSX.Element {
  const groups = p.nodeGroups ?? [];
  if (groups.length === 0) return <span class="number">{p.nodes ?? "–"}</span>;
  const out = groups.filter((g) => !isUsable(g.state));
  return (
    <ul class="node-groups">
      {groups.filter((g) => isUsable(g.state)).map(Usable)}
      {out.map((g) => (
        <li key={`${g.state} ${g.reason}`} class="node-out">
          <Badge state="error" word={`${g.nodes} ${nodeWord(g.state)}`} />
          {g.reason && g.reason !== "Not responding" && (
            <span class="soft"> {sentence(g.reason)}</span>
          )}
        </li>
      ))}
    </ul>
  );
}

function Usable(g: { state: string; nodes: number }): JSX.Element {
  return (
    <li key={g.state} class="number">
      {g.nodes} {nodeWord(g.state)}
    </li>
  );
}

const CLUSTER_WORDS: Record<string, [string, string]> = {
  up: ["completed", "up"],
  unreachable: ["error", "Slurm does not answer"],
};

export function Clusters({ clusters }: { clusters: ClusterRow[] }): JSX.Element {
  return (
    <>
      {clusters.map((cluster) => (
        <ClusterPart key={cluster.cluster} cluster={cluster} />
      ))}
    </>
  );
}

function ClusterPart({ cluster }: { cluster: ClusterRow }): JSX.Element {
  const [state, word] = CLUSTER_WORDS[cluster.state] ?? ["pending", "state not known yet"];
  return (
    <Part
      title={`Slurm: ${cluster.cluster}`}
      actions={<Badge state={state} word={word} />}
      note={[
        cluster.version ? `Slurm ${cluster.version}` : "",
        cluster.at === null
          ? "An agent of yours reports it when you have a run there."
          : `reported ${ago(cluster.at, now.value)}`,
      ]
        .filter(Boolean)
        .join(" · ")}
    >
      {cluster.detail && <p class="host-error pad">{sentence(cluster.detail)}</p>}
      {cluster.partitions ? (
        <Table
          label={`Partitions of ${cluster.cluster}`}
          heads={[
            "Partition",
            "Nodes",
            "Cores of a node",
            "Memory of a node",
            "GPUs of a node",
            "Time limit",
          ]}
        >
          {cluster.partitions.map((p) => (
            <tr key={p.name}>
              <th scope="row">
                {p.name}
                {p.default && <span class="soft"> (default)</span>}
                {p.up === false && <PartitionState state={p.state} />}
              </th>
              <td>
                <Nodes partition={p} />
              </td>
              <td class="number">{p.coresPerNode ?? "–"}</td>
              <td class="number">{p.memoryMbPerNode ? megabytes(p.memoryMbPerNode) : "–"}</td>
              <td class="number">{p.gpusPerNode ?? "–"}</td>
              <td class="number">{p.timeLimitSecs ? duration(p.timeLimitSecs) : "no limit"}</td>
            </tr>
          ))}
        </Table>
      ) : (
        <Nothing>Its partitions are not known.</Nothing>
      )}
    </Part>
  );
}
