/** What the user's files use, beside the quota. */

import type { JSX } from "preact";
import { data } from "../api.ts";
import { now } from "../clock.ts";
import { ErrorMessage, Loading } from "../parts/messages.tsx";
import { useRemote } from "../remote.ts";
import { ago, bytes, plural } from "../text/format.ts";

interface DiskRow {
  state: "ok" | "soft" | "hard";
  usedBytes: number;
  files: number;
  softBytes: number | null;
  hardBytes: number | null;
  complete: boolean;
  measuredAt: number | null;
  largest: { name: string; bytes: number }[];
}

const LARGEST = 5;
const STATES = {
  ok: "",
  soft: "Above the soft limit. Delete what you no longer need before you reach the hard limit.",
  hard: "At the limit: new jobs and uploads are refused until you delete files.",
};

export function Disk(): JSX.Element {
  const found = useRemote<{ users: DiskRow[] }>("disk", (signal) => data("disk-usage", {}, signal));
  const row = found.data?.users[0];
  return (
    <section class="card account-part" aria-labelledby="disk">
      <h2 id="disk">Disk</h2>
      {found.error?.code === "notFound" ? (
        <p class="soft">This site does not measure disk usage.</p>
      ) : (
        found.error && <ErrorMessage error={found.error} again={found.reload} />
      )}
      {!found.data && !found.error && <Loading what="the disk usage" />}
      {found.data && !row && <p class="soft">You have no files.</p>}
      {row && <Usage row={row} />}
    </section>
  );
}

function Usage({ row }: { row: DiskRow }): JSX.Element {
  const limit = row.hardBytes ?? row.softBytes;
  const used = `${bytes(row.usedBytes)}${row.complete ? "" : " or more"}`;
  return (
    <>
      <p>
        <strong class="number large">{used}</strong>{" "}
        <span class="soft">
          {limit === null ? "no quota" : `of ${bytes(limit)}`} · {plural(row.files, "file")}
        </span>
      </p>
      {limit !== null && (
        <meter
          class="quota"
          aria-label={`${used} of ${bytes(limit)} used`}
          data-state={row.state}
          max={Math.max(1, limit)}
          value={Math.min(row.usedBytes, limit)}
        />
      )}
      {row.softBytes !== null && row.hardBytes !== null && (
        <p class="soft small">Soft limit {bytes(row.softBytes)}</p>
      )}
      {row.state !== "ok" && (
        <p class={row.state === "soft" ? "problem mild" : "problem"}>{STATES[row.state]}</p>
      )}
      {row.largest.length > 0 && (
        <ul class="rows tight">
          {row.largest.slice(0, LARGEST).map((part) => (
            <li key={part.name}>
              <span class="mono clip" title={part.name}>
                {part.name}
              </span>
              <span class="number soft">{bytes(part.bytes)}</span>
            </li>
          ))}
        </ul>
      )}
      <p class="soft small">
        {row.measuredAt === null
          ? "Not measured yet since the last restart."
          : `Measured ${ago(row.measuredAt, now.value)}.`}
      </p>
    </>
  );
}
