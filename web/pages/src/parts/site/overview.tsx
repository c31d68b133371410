/** Health with remedies, and what the supervisor does now. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { now } from "../../clock.ts";
import { ago, bytes, duration, localTimes, sentence } from "../../text/format.ts";
import { brief, curve, type Load, perSecond, type Rates, rates } from "../../text/site.ts";
import { Badge, Meter, Part } from "./part.tsx";

export interface HealthReply {
  state: "ok" | "degraded" | "failing";
  at: number;
  reasons: {
    what: string;
    state: string;
    sentence: string;
    since: number | null;
    try: string;
  }[];
}

const HEALTH: Record<HealthReply["state"], [string, string]> = {
  ok: ["completed", "everything works"],
  degraded: ["pending", "works, needs attention"],
  failing: ["error", "requests are not served safely"],
};

export function HealthCard({ health }: { health: HealthReply }): JSX.Element {
  const [state, word] = HEALTH[health.state] ?? HEALTH.degraded;
  return (
    <Part
      title="Health"
      actions={<Badge state={state} word={word} />}
      note={`checked ${ago(health.at, now.value)}`}
    >
      {health.reasons.length > 0 && (
        <ul class="reasons" aria-live="polite">
          {health.reasons.map((r) => (
            <li
              key={`${r.what} ${r.sentence}`}
              data-state={r.state === "failing" ? "error" : "pending"}
            >
              <p class="why-sentence">{sentence(localTimes(r.sentence))}</p>
              <p class="soft">
                {r.since !== null && `For ${duration(Math.max(1, now.value - r.since))}. `}
                What to do: <span class="remedy">{r.try}</span>
              </p>
            </li>
          ))}
        </ul>
      )}
    </Part>
  );
}

const KEPT = 60;

/** Keep the rates between the latest answers. */
function useRates(load: Load | undefined): Rates[] {
  const [held, setHeld] = useState<{ last: Load | undefined; rates: Rates[] }>({
    last: undefined,
    rates: [],
  });
  useEffect(() => {
    if (!load) return;
    setHeld((h) => {
      if (h.last?.mono === load.mono) return h;
      const found = rates(h.last, load);
      return { last: load, rates: found ? [...h.rates, found].slice(-KEPT) : [] };
    });
  }, [load]);
  return held.rates;
}

export function LoadCard({ load }: { load: Load }): JSX.Element {
  const found = useRates(load);
  const last = found.at(-1);
  const rate = (name: "events" | "submitted" | "finished"): string =>
    last ? perSecond(last[name]) : "…";
  return (
    <Part title="Now">
      <dl class="stats">
        <Stat name="Active runs" value={load.active.toLocaleString()} />
        <Stat name="In the queue" value={load.queued.toLocaleString()} />
        <Stat name="Tasks" value={load.tasks.toLocaleString()} />
        <Stat name="Agents connected" value={load.agents.toLocaleString()} />
        <Stat
          name="Runs submitted"
          value={rate("submitted")}
          values={found.map((r) => r.submitted)}
        />
        <Stat name="Runs finished" value={rate("finished")} values={found.map((r) => r.finished)} />
        <Stat name="Events" value={rate("events")} values={found.map((r) => r.events)} />
        {load.loop && (
          <Stat
            name="Lag of the event loop"
            value={brief(load.loop.p999)}
            note={
              load.loop.worst.secs
                ? `99.9 % are shorter; longest ${brief(load.loop.worst.secs)}`
                : "99.9 % are shorter; none over 50 ms"
            }
          />
        )}
        <Stat
          name="Event store"
          value={bytes(load.storeBytes)}
          note={`${load.events.toLocaleString()} events`}
        />
        {load.process && (
          <Stat
            name="Memory of the supervisor"
            value={bytes(load.process.rss)}
            note={`${load.process.descriptors} open files`}
          />
        )}
      </dl>
      <div class="meters">
        {load.disks.map((d) => (
          <Meter
            key={d.area}
            label={AREAS[d.area] ?? `Disk: ${d.area}`}
            used={d.sizeBytes - d.freeBytes}
            total={d.sizeBytes}
            text={`${bytes(d.freeBytes)} free of ${bytes(d.sizeBytes)}`}
          />
        ))}
      </div>
    </Part>
  );
}

const AREAS: Record<string, string> = {
  root: "System disk",
  user: "Users' disk",
  store: "Store's disk",
};

function Stat(props: {
  name: string;
  value: string;
  note?: string;
  values?: number[];
}): JSX.Element {
  const points = curve(props.values ?? []);
  return (
    <div>
      <dt>{props.name}</dt>
      <dd class="number">
        {props.value}
        {points && (
          <svg class="curve" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">
            <polyline points={points} />
          </svg>
        )}
      </dd>
      {props.note && <dd class="sub">{props.note}</dd>}
    </div>
  );
}
