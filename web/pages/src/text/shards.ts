/** Supervisors of a site as a table: one row for each shard, or one for a site without shards. */

export interface SupervisorRow {
  name: string;
  role: string;
  seenSecsAgo: number;
  clockAheadSecs: number;
  /** Of the supervisor that serves; null without a lease. Earlier supervisors send neither. */
  epoch?: number | null;
  leaseEndsInSecs?: number | null;
}

export interface SupervisorsReply {
  name: string;
  supervisors: SupervisorRow[];
  shards?: Record<string, { name: string; supervisors: SupervisorRow[] }>;
  missing?: number[];
}

/** A shard. owner: null if no supervisor serves it. lag: of the standby without a sign for longest. */
export interface ShardRow {
  shard: number | null;
  owner: string | null;
  epoch: number | null;
  leaseEndsInSecs: number | null;
  standbys: string[];
  away: string[];
  lag: number | null;
}

function row(shard: number | null, name: string, found: SupervisorRow[]): ShardRow {
  const serving = found.find((s) => s.role === "serving");
  const standbys = found.filter((s) => s.role === "standby");
  return {
    shard,
    owner: serving?.name ?? name,
    epoch: serving?.epoch ?? null,
    leaseEndsInSecs: serving?.leaseEndsInSecs ?? null,
    standbys: standbys.map((s) => s.name),
    away: found.filter((s) => s.role === "away" || s.role === "expired").map((s) => s.name),
    lag: standbys.length ? Math.max(...standbys.map((s) => s.seenSecsAgo)) : null,
  };
}

/** Return whether the site may have several supervisors. */
export const isSeveral = (reply: SupervisorsReply): boolean =>
  reply.shards !== undefined || reply.supervisors.length > 0;

/** Return the rows of the table. Shards that do not answer have a row without an owner. */
export function shardRows(reply: SupervisorsReply): ShardRow[] {
  if (!reply.shards) return [row(null, reply.name, reply.supervisors)];
  const rows = Object.entries(reply.shards).map(([k, s]) => row(Number(k), s.name, s.supervisors));
  for (const shard of reply.missing ?? []) rows.push({ ...row(shard, "", []), owner: null });
  return rows.sort((a, b) => (a.shard ?? 0) - (b.shard ?? 0));
}
