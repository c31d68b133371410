/** The page of operations, for administrators. The supervisor refuses the data to others. */

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { useLocation } from "preact-iso";
import { data } from "../api.ts";
import { useTurns } from "../every.ts";
import { useLive } from "../live.ts";
import { siteNews } from "../me.ts";
import { Frame } from "../parts/frame.tsx";
import { Empty, ErrorMessage, Loading } from "../parts/messages.tsx";
import { Audit } from "../parts/site/audit.tsx";
import { Drains } from "../parts/site/drains.tsx";
import { HealthCard, type HealthReply, LoadCard } from "../parts/site/overview.tsx";
import { Tokens, Users } from "../parts/site/people.tsx";
import { LimitsOfUsers, Settings } from "../parts/site/settings.tsx";
import { QueueTable } from "../parts/site/shares.tsx";
import { Supervisors } from "../parts/site/supervisors.tsx";
import { Notifications, Retention } from "../parts/site/upkeep.tsx";
import { Tabs } from "../parts/tabs.tsx";
import { useRemote } from "../remote.ts";
import { path } from "../site.ts";
import { isSeveral, type SupervisorsReply } from "../text/shards.ts";
import type { DrainRow, Load, QueuesReply } from "../text/site.ts";

const TABS = [
  { name: "overview", label: "Overview" },
  { name: "users", label: "Users" },
  { name: "tokens", label: "Tokens" },
  { name: "limits", label: "Queues and limits" },
  { name: "upkeep", label: "Upkeep" },
  { name: "audit", label: "Audit" },
  { name: "configuration", label: "Configuration" },
] as const;
type Tab = (typeof TABS)[number]["name"];

const FORBIDDEN = ["forbidden", "scopeMissing"];

export function OperationsPage(): JSX.Element {
  const { query, route } = useLocation();
  const tab: Tab = TABS.find((t) => t.name === query.tab)?.name ?? "overview";
  const health = useRemote<HealthReply>("health", (signal) => data("site/site-health", {}, signal));
  useLive("", () => {}, health.reload);
  // nothing else is asked before it is known that this user may
  const refused = health.error && FORBIDDEN.includes(health.error.code);
  const known = health.data !== undefined || health.error !== undefined;
  return (
    <Frame title="Operations">
      <div class="page-head">
        <h1>Operations</h1>
      </div>
      {!known && <Loading what="the state of the site" />}
      {known && !refused && (
        <Tabs
          label="Operations"
          items={[...TABS]}
          selected={tab}
          onSelect={(name) =>
            route(path("/operations") + (name === "overview" ? "" : `?tab=${name}`))
          }
        >
          <div class="parts inner">
            {tab === "overview" && <Overview health={health} />}
            {tab === "users" && <Users />}
            {tab === "tokens" && <Tokens />}
            {tab === "limits" && <Queues />}
            {tab === "upkeep" && (
              <>
                <Retention />
                <Notifications />
              </>
            )}
            {tab === "audit" && <Audit />}
            {tab === "configuration" && <Settings />}
          </div>
        </Tabs>
      )}
      {refused && (
        <Empty title="This page is for administrators of the site.">
          <p>
            <a href={path("/jobs")}>Your jobs</a> and <a href={path("/queues")}>queues and hosts</a>{" "}
            show what concerns you.
          </p>
        </Empty>
      )}
    </Frame>
  );
}

function Overview({ health }: { health: ReturnType<typeof useRemote<HealthReply>> }): JSX.Element {
  const load = useRemote<Load>("load", (signal) => data("site/site-load", {}, signal));
  const drains = useRemote<{ drains: DrainRow[] }>("drains", (signal) =>
    data("site/site-drains", {}, signal),
  );
  const supervisors = useRemote<SupervisorsReply>("supervisors", (signal) =>
    data("site/site-supervisors", {}, signal),
  );
  useTurns([load.reload, health.reload, drains.reload, supervisors.reload]);
  useEffect(drains.reload, [siteNews.value]);
  const drained = (): void => {
    drains.reload();
    health.reload();
  };
  const error = health.error ?? load.error;
  return (
    <>
      {error && <ErrorMessage error={error} again={health.reload} />}
      {health.data && <HealthCard health={health.data} />}
      {supervisors.data && isSeveral(supervisors.data) && <Supervisors reply={supervisors.data} />}
      {load.data && <LoadCard load={load.data} />}
      {drains.data && <Drains drains={drains.data.drains} onDone={drained} />}
    </>
  );
}

function Queues(): JSX.Element {
  const queues = useRemote<QueuesReply>("queues", (signal) =>
    data("site/queues", { limit: 1 }, signal),
  );
  if (queues.error) return <ErrorMessage error={queues.error} again={queues.reload} />;
  return (
    <>
      {queues.data ? <QueueTable reply={queues.data} /> : <Loading what="queues" />}
      <LimitsOfUsers />
    </>
  );
}
