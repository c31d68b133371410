/** The page of queues and hosts: who waits for what, shares, limits, use, hosts and agents. */

import type { JSX } from "preact";
import { useLocation } from "preact-iso";
import { data } from "../api.ts";
import { useAtMost, useTurns } from "../every.ts";
import { useLive } from "../live.ts";
import { isAdmin, me, othersQuery } from "../me.ts";
import { Frame } from "../parts/frame.tsx";
import { ErrorMessage, Loading } from "../parts/messages.tsx";
import { Agents } from "../parts/site/agents.tsx";
import { DrainButton } from "../parts/site/drains.tsx";
import { Clusters, Hosts } from "../parts/site/hosts.tsx";
import { Limits, QueueTable, Slots, Turns } from "../parts/site/shares.tsx";
import { Waits } from "../parts/site/waits.tsx";
import { useRemote } from "../remote.ts";
import { path } from "../site.ts";
import type { AgentRow, ClusterRow, HostRow, QueuesReply } from "../text/site.ts";

export function QueuesPage(): JSX.Element {
  const { query } = useLocation();
  const admin = isAdmin();
  const all = admin && query.of !== "mine";
  const of = all ? {} : { uid: me.value.uid };
  const key = all ? "all" : "mine";
  const queues = useRemote<QueuesReply>(`queues ${key}`, (signal) =>
    data("site/queues", of, signal),
  );
  const agents = useRemote<{ agents: AgentRow[] }>(`agents ${key}`, (signal) =>
    data("site/agents", of, signal),
  );
  const clusters = useRemote<{ clusters: ClusterRow[] }>("clusters", (signal) =>
    data("site/clusters", { uid: me.value.uid }, signal),
  );
  const pool = useRemote<{ hosts: HostRow[] }>(`pool ${all}`, (signal) =>
    all ? data("site/pool", {}, signal) : Promise.resolve({ hosts: [] }),
  );
  useTurns([queues.reload, agents.reload, ...(all ? [pool.reload] : []), clusters.reload]);
  const changed = useAtMost(queues.reload);
  useLive(
    all ? othersQuery() : "",
    (name) => {
      if (name === "site" && all) pool.reload();
      if (name !== "progress" && name !== "library") changed();
    },
    queues.reload,
    queues.reload,
  );
  const error = queues.error ?? agents.error;
  const hosts = pool.data?.hosts ?? [];
  return (
    <Frame title="Queues and hosts">
      <div class="page-head">
        <h1>Queues and hosts</h1>
        {admin && (
          <nav class="switch" aria-label="Whose">
            <a href={path("/queues")} aria-current={all ? "page" : undefined}>
              Everybody
            </a>
            <a href={path("/queues?of=mine")} aria-current={all ? undefined : "page"}>
              Mine
            </a>
          </nav>
        )}
      </div>
      {error && <ErrorMessage error={error} again={queues.reload} />}
      {!queues.data && !error && <Loading what="queues" />}
      {queues.data && (
        <div class="parts">
          <Waits reply={queues.data} />
          <div class="parts">
            <Slots reply={queues.data} />
            {!all && <Limits reply={queues.data} />}
          </div>
          <QueueTable reply={queues.data} />
          <Turns reply={queues.data} />
          {hosts.length > 0 && (
            <Hosts
              hosts={hosts}
              actions={(host) => (
                <DrainButton
                  place={host}
                  drained={host.drained !== null}
                  onDone={() => {
                    pool.reload();
                    queues.reload();
                  }}
                />
              )}
            />
          )}
          <Clusters clusters={clusters.data?.clusters ?? []} />
          {agents.data && <Agents agents={agents.data.agents} all={all} />}
        </div>
      )}
    </Frame>
  );
}
