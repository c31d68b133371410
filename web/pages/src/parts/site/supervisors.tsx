/** Supervisors with their leases and standbys: of each shard, or of a site without shards. */

import type { JSX } from "preact";
import { type SupervisorsReply, shardRows } from "../../text/shards.ts";
import { Table } from "../table.tsx";
import { Badge, Part } from "./part.tsx";

const secs = (value: number | null): string => (value === null ? "–" : `${value.toFixed(1)} s`);

export function Supervisors({ reply }: { reply: SupervisorsReply }): JSX.Element {
  const rows = shardRows(reply);
  const sharded = reply.shards !== undefined;
  return (
    <Part title={sharded ? "Shards" : "Supervisors"}>
      <Table
        label="Supervisors with their leases and standbys"
        class="flat supervisors"
        heads={[
          ...(sharded ? ["Shard"] : []),
          "Served by",
          "Epoch",
          "Lease ends in",
          "Standbys",
          "Lag",
        ]}
      >
        {rows.map((r) => (
          <tr key={r.shard ?? "site"}>
            {sharded && <td class="number">{r.shard}</td>}
            <td class="mono">
              {r.owner ?? <Badge state="error" word="nobody: its users' requests wait" />}
            </td>
            <td class="number">{r.epoch ?? "–"}</td>
            <td class="number">{secs(r.leaseEndsInSecs)}</td>
            <td class="mono">
              {r.standbys.join(" ") || "none"}
              {r.away.length > 0 && <span class="soft"> (away: {r.away.join(" ")})</span>}
            </td>
            <td class="number">{secs(r.lag)}</td>
          </tr>
        ))}
      </Table>
    </Part>
  );
}
