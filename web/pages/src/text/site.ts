/** Queues, hosts and the state of a site: the supervisor's answers, and words for them. Pure. */

import { duration } from "./format.ts";

export interface QueueRow {
  queue: string;
  share: number;
  part: number;
  borrow: boolean;
  open: boolean;
  mine: boolean | null;
  waiting: number;
  running: number;
  cores: number;
  gpus: number;
  users?: string[];
  plans?: string[];
}

export interface AccountRow {
  queue: string;
  uid: string;
  usedCoreSecs: number;
  level: number;
  waiting: number;
  running: number;
  cores: number;
  gpus: number;
  memoryMb: number;
}

export interface SlotRow {
  driver: string;
  host: string;
  kind: string;
  batch: boolean;
  used: number;
  total: number;
  waiting: number;
  /** of the whole site, where shards share the slots */
  siteTotal?: number;
  siteUsed?: number;
}

export interface LimitRow {
  limit: string;
  most: number;
  used: number | null;
}

export interface WaitRow {
  computeJid: string;
  uid: string;
  title: string;
  queue: string;
  driver: string;
  queuedAt: number;
  queueState: string | null;
  sentence: string | null;
}

export interface QueuesReply {
  all: boolean;
  queues: QueueRow[];
  accounts: AccountRow[];
  slots: SlotRow[];
  limits: LimitRow[];
  waits: WaitRow[];
  waiting: number;
  halfLifeSecs: number;
  /** Names of users, as far as the site knows them. */
  names: Record<string, string>;
}

export interface DrainRow {
  driver: string;
  host: string;
  by: string;
  at: number;
  reason: string;
}

type Pair = [number, number | null];

export interface HostRow {
  host: string;
  driver: string;
  state: "up" | "down";
  since: number;
  drained: { by: string; at: number; reason: string } | null;
  detail: string;
  version: string;
  plans: string[];
  slots: Record<string, [number, number]>;
  agents: number;
  agentsMb: Pair;
  runs: number;
  tasks: number;
  cpu: Pair;
  memoryMb: Pair;
  gpus: Pair;
}

export interface NodeGroup {
  state: string;
  nodes: number;
  reason?: string;
}

export interface PartitionRow {
  name: string;
  default?: boolean;
  up?: boolean;
  state?: string;
  nodeGroups?: NodeGroup[];
  nodes?: number | null;
  coresPerNode?: number | null;
  memoryMbPerNode?: number | null;
  gpusPerNode?: number | null;
  timeLimitSecs?: number | null;
}

export interface ClusterRow {
  cluster: string;
  access: string;
  state: string;
  detail: string;
  at: number | null;
  version: string | null;
  partitions: PartitionRow[] | null;
}

export interface AgentRow {
  agent: string;
  agentId: string;
  uid: string;
  driver: string;
  kind: string;
  host: string;
  phase: string;
  since: number | null;
  version: string | null;
  heartbeatSecs: number | null;
  lastError: string | null;
  jobs: string[];
}

/** What Slurm's word for a partition that is not up means for jobs. */
const PARTITIONS: Record<string, [string, string]> = {
  DRAIN: ["drained", "It takes no new jobs."],
  INACTIVE: ["inactive", "It takes no jobs."],
};

export const partitionWords = (state: string | undefined): [string, string] =>
  PARTITIONS[state ?? ""] ?? ["down", "No job starts there."];

/** Marks that Slurm adds to the state of a node. */
const MARKS: Record<string, string> = {
  "*": "not responding",
  "~": "powered off",
  "#": "starting",
  $: "reserved for maintenance",
  "@": "to be restarted",
  "^": "restarting",
  "!": "to be powered off",
  "%": "powering off",
  "-": "planned for a job",
};
const USABLE = /^(idle|mixed|allocated|completing|planned)/;

/** Return the state of nodes in words: "drained, does not respond". */
export function nodeWord(state: string): string {
  const mark = MARKS[state.slice(-1)];
  const word = mark ? state.slice(0, -1) : state;
  return mark ? `${word}, ${mark}` : word;
}

/** Nodes with this state take jobs, now or when their jobs have ended. */
export const isUsable = (state: string): boolean =>
  USABLE.test(state) && !state.endsWith("*") && !state.endsWith("$");

/** What a waiting run waits for, in a word or two. */
const WAITS: Record<string, string> = {
  dependency: "another run",
  agent: "its agent",
  op_slot: "own runs",
  run_dir: "its earlier run",
  cpu_slot: "a slot",
  array_slot: "its array",
  user_limit: "a limit",
  resources: "resources",
  ports: "ports",
  retry_wait: "its next attempt",
  starting: "its start",
  no_host: "a host",
  host_down: "a host",
  agent_memory: "memory for its agent",
  sign_in: "a sign-in",
  slurm: "Slurm",
  drained: "the end of a drain",
};

export const waitWord = (state: string | null): string => WAITS[state ?? ""] ?? "its start";

const PHASES: Record<string, string> = {
  absent: "not running",
  finding: "being looked for",
  starting: "starting",
  away: "not connected",
  stopping: "stopping",
  up: "connected",
  leaving: "ending",
  crowded: "waits for memory",
  signed_out: "sign-in needed",
};

export const phaseWord = (phase: string): string => PHASES[phase] ?? phase;

/** The state of a job with the colour that fits a phase. */
export function phaseState(phase: string): string {
  if (phase === "up") return "completed";
  if (phase === "away" || phase === "signed_out") return "error";
  return ["starting", "finding", "stopping", "crowded", "leaving"].includes(phase)
    ? "pending"
    : "canceled";
}

interface LimitWords {
  name: string;
  beyond: string;
  unit: "count" | "secs" | "mb" | "hours";
}

const WAIT = "more runs wait";
const REFUSED = "larger requests are refused";

const LIMITS: Record<string, LimitWords> = {
  running: { name: "Runs at a time", beyond: WAIT, unit: "count" },
  queued: { name: "Waiting runs", beyond: "new runs are refused", unit: "count" },
  cores: { name: "Cores of one run", beyond: REFUSED, unit: "count" },
  gpus: { name: "GPUs of one run", beyond: REFUSED, unit: "count" },
  sequential: { name: "Run time, sequential", beyond: REFUSED, unit: "secs" },
  parallel: { name: "Run time, parallel", beyond: REFUSED, unit: "secs" },
  totalCores: { name: "Cores of all runs", beyond: WAIT, unit: "count" },
  totalGpus: { name: "GPUs of all runs", beyond: WAIT, unit: "count" },
  totalMemory: { name: "Memory of all runs", beyond: WAIT, unit: "mb" },
  coreHours: { name: "Core hours this month", beyond: "new runs are refused", unit: "hours" },
  gpuHours: { name: "GPU hours this month", beyond: "new runs are refused", unit: "hours" },
  diskSoft: { name: "Disk, warning", beyond: "a warning", unit: "mb" },
  diskHard: { name: "Disk", beyond: "new runs and uploads are refused", unit: "mb" },
};

export const limitName = (limit: string): string => LIMITS[limit]?.name ?? limit;
export const limitBeyond = (limit: string): string => LIMITS[limit]?.beyond ?? "";

/** Format an amount in the unit of a limit. */
export function limitAmount(limit: string, amount: number): string {
  switch (LIMITS[limit]?.unit) {
    case "secs":
      return duration(amount);
    case "mb":
      return megabytes(amount);
    case "hours":
      return `${amount >= 100 ? Math.round(amount) : amount.toFixed(1)} h`;
    default:
      return amount.toLocaleString();
  }
}

/** Format MB (2**20 bytes). */
export function megabytes(amount: number): string {
  if (amount < 1024) return `${Math.round(amount)} MB`;
  const gb = amount / 1024;
  return gb < 1024
    ? `${gb < 100 ? gb.toFixed(1) : Math.round(gb)} GB`
    : `${(gb / 1024).toFixed(1)} TB`;
}

/** Format core-seconds: hours from one hour on. */
export const coreTime = (secs: number): string => {
  const hours = secs / 3600;
  if (hours < 1) return duration(secs);
  return `${hours < 10 ? hours.toFixed(1) : Math.round(hours).toLocaleString()} h`;
};

/** The part of a whole, from 0 to 1; 0 of nothing is 0. */
export const partOf = (used: number, total: number | null): number =>
  total ? Math.min(1, Math.max(0, used / total)) : 0;

export interface Load {
  at: number;
  mono: number;
  events: number;
  submitted: number;
  finished: number;
  active: number;
  queued: number;
  tasks: number;
  agents: number;
  storeBytes: number;
  disks: { area: string; freeBytes: number; sizeBytes: number }[];
  loop: { p999: number; held: number; worst: { secs: number; what: string } } | null;
  process: { rss: number; descriptors: number } | null;
  live: { streams?: number } | null;
}

export interface Rates {
  at: number;
  events: number;
  submitted: number;
  finished: number;
}

/** Rates per second between two answers; null after a restart of the supervisor. */
export function rates(before: Load | undefined, after: Load): Rates | null {
  if (!before) return null;
  const secs = after.mono - before.mono;
  const events = after.events - before.events;
  const finished = after.finished - before.finished;
  const submitted = after.submitted - before.submitted;
  if (secs <= 0 || events < 0 || finished < 0 || submitted < 0) return null;
  return {
    at: after.at,
    events: events / secs,
    submitted: submitted / secs,
    finished: finished / secs,
  };
}

export const perSecond = (rate: number): string =>
  `${rate === 0 ? "0" : rate < 10 ? rate.toFixed(1) : Math.round(rate).toLocaleString()}/s`;

/** Format seconds that are usually parts of one: "12 ms". */
export const brief = (secs: number): string =>
  secs < 1 ? `${Math.round(secs * 1000)} ms` : duration(secs);

/** The points of a curve in a box of 100 x 24, newest right; "" for fewer than two values. */
export function curve(values: number[]): string {
  if (values.length < 2) return "";
  const most = Math.max(...values, 1e-9);
  return values
    .map(
      (v, n) =>
        `${((n / (values.length - 1)) * 100).toFixed(1)},${(23 - (v / most) * 22).toFixed(1)}`,
    )
    .join(" ");
}
