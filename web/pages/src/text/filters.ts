/** The state of the page of jobs, which is its address. Pure. */

export const STATES = ["pending", "running", "completed", "error", "canceled"] as const;
export const ORDERS = ["changed", "submitted", "started", "ended", "duration"] as const;
export type Order = (typeof ORDERS)[number];

/** Why a run ended, other than by the exit of its command. */
export const CAUSES: [string, string][] = [
  ["exit", "exit status"],
  ["signal", "signal"],
  ["timeLimit", "time limit"],
  ["queueLimit", "time limit in the queue"],
  ["cancel", "canceled"],
  ["lost", "lost"],
  ["shutdown", "machine shut down"],
  ["startFailed", "start failed"],
  ["agentStartFailed", "agent not started"],
  ["dependency", "dependency"],
  ["scheduler", "cluster's scheduler"],
];

/** Whose jobs: one's own, those of the members of one's groups, or of everybody. */
export const SCOPES = ["mine", "group", "all"] as const;
export type Scope = (typeof SCOPES)[number];

export interface Filters {
  scope: Scope;
  /** The uid of one user; only beyond one's own jobs. */
  user: string;
  states: string[];
  text: string;
  queues: string[];
  drivers: string[];
  apps: string[];
  causes: string[];
  since: string;
  until: string;
  sort: Order;
  ascending: boolean;
  cursor: string;
}

const LISTS = ["states", "queues", "drivers", "apps", "causes"] as const;
const TEXTS = ["user", "text", "since", "until", "cursor"] as const;
const NAMES = { states: "state", queues: "queue", drivers: "driver", apps: "app", causes: "cause" };
const DATE = /^\d{4}-\d\d-\d\d$/;

export const NO_FILTERS: Filters = {
  scope: "mine",
  user: "",
  states: [],
  text: "",
  queues: [],
  drivers: [],
  apps: [],
  causes: [],
  since: "",
  until: "",
  sort: "changed",
  ascending: false,
  cursor: "",
};

const words = (value: string | null): string[] =>
  (value ?? "")
    .split(",")
    .map((w) => w.trim())
    .filter((w) => w !== "");

/** Return the filters of a query; anything that is not valid is left out. */
export function parseFilters(search: string): Filters {
  const query = new URLSearchParams(search);
  const found: Filters = { ...NO_FILTERS };
  for (const name of LISTS) found[name] = words(query.get(NAMES[name])).slice(0, 32);
  found.states = found.states.filter((s) => (STATES as readonly string[]).includes(s));
  for (const name of TEXTS) found[name] = (query.get(name) ?? "").slice(0, 200);
  if (!DATE.test(found.since)) found.since = "";
  if (!DATE.test(found.until)) found.until = "";
  found.scope = SCOPES.find((s) => s === query.get("scope")) ?? "mine";
  if (found.scope === "mine") found.user = "";
  found.sort = ORDERS.find((o) => o === query.get("sort")) ?? "changed";
  found.ascending = query.get("order") === "asc";
  return found;
}

/** Return the query of these filters, "" for none. */
export function formatFilters(filters: Filters): string {
  const query = new URLSearchParams();
  if (filters.scope !== "mine") query.set("scope", filters.scope);
  for (const name of LISTS) {
    if (filters[name].length) query.set(NAMES[name], filters[name].join(","));
  }
  for (const name of TEXTS) if (filters[name]) query.set(name, filters[name]);
  if (filters.sort !== "changed") query.set("sort", filters.sort);
  if (filters.ascending) query.set("order", "asc");
  const text = query.toString().replaceAll("%2C", ",");
  return text ? `?${text}` : "";
}

export const isFiltered = (f: Filters): boolean =>
  formatFilters({ ...f, scope: "mine", sort: "changed", ascending: false, cursor: "" }) !== "";

const day = (date: string, days: number): number => {
  const [year = 0, month = 1, dayOfMonth = 1] = date.split("-").map(Number);
  return new Date(year, month - 1, dayOfMonth + days).getTime() / 1000;
};

/** Return the request for these filters: only that of the site may be about other users. */
export const searchName = (f: Filters): string =>
  f.scope === "mine" ? "job-search" : "site/job-search";

/** Return the body of `job-search`. Days are local, and `until` is included. */
export function searchRequest(f: Filters, limit: number): Record<string, unknown> {
  return {
    ...(f.user ? { uid: f.user } : {}),
    states: f.states,
    text: f.text,
    queues: f.queues,
    drivers: f.drivers,
    apps: f.apps,
    causes: f.causes,
    ...(f.since ? { since: day(f.since, 0) } : {}),
    ...(f.until ? { until: day(f.until, 1) } : {}),
    sort: f.sort,
    ascending: f.ascending,
    cursor: f.cursor,
    limit,
  };
}

/**
 * Return the query that continues a search which ended early, or null if it did not. Only the order
 * of changes can be continued where the search ended.
 */
export const furtherSearch = (
  f: Filters,
  reply: { searchedUntil: number | null },
): string | null =>
  reply.searchedUntil === null
    ? null
    : formatFilters({
        ...f,
        sort: "changed",
        ascending: false,
        cursor: String(reply.searchedUntil),
      });
