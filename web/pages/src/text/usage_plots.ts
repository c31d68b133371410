/** Plots of what a job uses, with what it asked for, and its efficiency in words. Pure. */

import { bytes, duration, plural } from "./format.ts";
import type { MetricsReply } from "./measures.ts";
import type { PlotData, PlotLine, PlotSeries } from "./plot_data.ts";

export interface TaskSeries {
  role: string;
  index: number;
  series?: (number | null)[][];
}

export interface UsageReply extends MetricsReply {
  attempt: number;
  tasks: TaskSeries[];
  seriesFields?: string[];
}

/** What a task did, as `job-tasks` says. */
export interface Lived {
  role: string;
  index: number;
  startedAt?: number | null;
  endedAt?: number | null;
  exit?: { outOfMemory?: boolean } | null;
}

/** What each task of a role asked for; null: nothing. */
export interface Asked {
  cores: number | null;
  memory: number | null;
  gpus: number | null;
  /** Containers get no more than what was requested. */
  isLimit: boolean;
}

type Amount = "cores" | "memory" | "gpus";

export type AskedByRole = Record<string, Asked>;

/** Title of the plot of what a container sent and received. */
export const NETWORK = "Network";

const MIB = 2 ** 20;
/** More tasks are shown as their sum. */
const MOST_LINES = 6;
const NOTHING: Asked = { cores: null, memory: null, gpus: null, isLimit: false };

type Unknown = Record<string, unknown>;
const object = (value: unknown): Unknown =>
  typeof value === "object" && value !== null ? (value as Unknown) : {};
const number = (value: unknown): number | null =>
  typeof value === "number" && value > 0 ? value : null;

/** Return what the definition of a job asks for, by role. A run on a cluster counts as one task. */
export function askedBy(definition: Unknown): AskedByRole {
  const out: AskedByRole = {};
  for (const [name, value] of Object.entries(object(definition.roles))) {
    const role = object(value);
    const mib = number(role.memory);
    out[name] = {
      cores: number(role.cpu),
      memory: mib === null ? null : mib * MIB,
      gpus: number(role.gpu),
      isLimit: typeof role.image === "string",
    };
  }
  const batch = object(definition.batch);
  if (Object.keys(batch).length > 0) {
    const nodes = number(batch.nodes) ?? 1;
    const mib = number(batch.memory);
    const cores = number(batch.cores);
    const tasks = number(batch.tasks);
    out.main ??= {
      cores: cores === null && tasks === null ? null : (cores ?? 1) * (tasks ?? 1),
      memory: mib === null ? null : mib * MIB * nodes,
      gpus: number(batch.gpus),
      isLimit: true,
    };
  }
  return out;
}

const askedOf = (asked: AskedByRole, role: string): Asked => asked[role] ?? NOTHING;

/** Return the sum over tasks; null if one of them asked for nothing. */
function sumOf(tasks: Lived[], asked: AskedByRole, name: Amount): number | null {
  let sum = 0;
  for (const task of tasks) {
    const value = askedOf(asked, task.role)[name];
    if (value === null) return null;
    sum += value;
  }
  return tasks.length > 0 ? sum : null;
}

// ---- series

interface Grid {
  times: number[];
  /** For each task and time a point, or undefined. */
  points: ((number | null)[] | undefined)[][];
}

/** Put the points of several tasks on common times: their samples are seconds apart. */
function grid(tasks: TaskSeries[], at: number): Grid {
  const series = tasks.map((t) => (t.series ?? []).filter((p) => typeof p[at] === "number"));
  if (series.length === 1) {
    const [points = []] = series;
    return { times: points.map((p) => p[at] ?? 0), points: [points] };
  }
  const first = Math.min(...series.flatMap((s) => (s[0]?.[at] != null ? [s[0][at]] : [])));
  let step = 5;
  for (const s of series) {
    const span = (s.at(-1)?.[at] ?? 0) - (s[0]?.[at] ?? 0);
    if (s.length > 1) step = Math.max(step, span / (s.length - 1));
  }
  const slots = series.map(
    (s) => new Map(s.map((p) => [Math.round(((p[at] ?? 0) - first) / step), p])),
  );
  const keys = [...new Set(slots.flatMap((m) => [...m.keys()]))].sort((a, b) => a - b);
  return {
    times: keys.map((k) => first + k * step),
    points: slots.map((m) => keys.map((k) => m.get(k))),
  };
}

const sumKnown = (values: (number | null | undefined)[]): number | null => {
  const known = values.filter((v) => v !== null && v !== undefined);
  return known.length ? known.reduce((a, b) => a + b, 0) : null;
};

/** Return the changes per second of a counter. */
function rates(times: number[], values: (number | null)[]): (number | null)[] {
  return values.map((value, n) => {
    const [before, secs] = [values[n - 1], (times[n] ?? 0) - (times[n - 1] ?? 0)];
    if (value === null || before === null || before === undefined || secs <= 0) return null;
    return value >= before ? (value - before) / secs : null;
  });
}

/** Return the plots of these tasks. Those without any value are left out, except CPU and memory. */
export function usagePlots(
  reply: UsageReply,
  shown: (task: { role: string; index: number }) => boolean,
  lived: Lived[],
  asked: AskedByRole,
): PlotData[] {
  const fields = reply.seriesFields ?? [];
  const tasks = reply.tasks.filter((t) => shown(t) && t.series?.length);
  const its = lived.filter(shown);
  const { times, points } = grid(tasks, fields.indexOf("at"));
  const killed = its.filter((t) => t.exit?.outOfMemory && t.endedAt);
  const ends = killed.flatMap((t) => (t.endedAt ? [t.endedAt] : []));
  const last = Math.max(...ends, Number.NEGATIVE_INFINITY);
  const more = times.length && last > (times.at(-1) ?? 0) ? [last] : [];
  const starts = its.flatMap((t) => (t.startedAt ? [t.startedAt] : []));
  const first = starts.length ? Math.min(...starts) : times[0];
  const x = {
    name: "Time",
    unit: "s",
    values: [...times, ...more],
    time: true,
    ...(first === undefined ? {} : { start: first }),
  };
  const padded = (values: (number | null)[]): (number | null)[] => [
    ...values,
    ...more.map(() => null),
  ];
  const column = (name: string): (number | null)[][] => {
    const at = fields.indexOf(name);
    return points.map((task) => task.map((p) => p?.[at] ?? null));
  };
  const each = (name: string): PlotSeries[] => {
    const columns = column(name);
    if (tasks.length <= MOST_LINES)
      return tasks.map((t, n) => ({
        name: `${t.role}/${t.index}`,
        values: padded(columns[n] ?? []),
      }));
    return [{ name: `all ${tasks.length} tasks`, values: padded(summed(columns)) }];
  };
  const summed = (columns: (number | null)[][]): (number | null)[] =>
    times.map((_, n) => sumKnown(columns.map((c) => c[n])));
  const requested = (name: Amount, times: number): PlotLine[] =>
    requestLines(its, asked, name, tasks.length <= MOST_LINES).map((l) => ({
      ...l,
      value: l.value * times,
    }));
  const flow = (name: string, field: string): PlotSeries => ({
    name,
    values: padded(rates(times, summed(column(field)))),
  });
  const marks = ends.map((at) => ({ at, text: "Out of memory" }));
  const known = (series: PlotSeries[]): boolean =>
    series.some((s) => s.values.some((v) => v !== null));
  const plots: [PlotData, boolean][] = [
    [
      {
        title: "CPU (100 % is one core)",
        x,
        y: { name: "CPU", unit: "%", zero: true },
        series: each("cpuPercent"),
        lines: requested("cores", 100),
      },
      true,
    ],
    [
      {
        title: "Memory",
        x,
        y: { name: "Memory", unit: "B", zero: true },
        series: each("memoryBytes"),
        lines: requested("memory", 1),
        marks,
      },
      true,
    ],
    [
      { title: "GPU", x, y: { name: "GPU", unit: "%", zero: true }, series: each("gpuPercent") },
      false,
    ],
    [
      {
        title: "GPU memory",
        x,
        y: { name: "GPU memory", unit: "B", zero: true },
        series: each("gpuMemoryBytes"),
      },
      false,
    ],
    [
      {
        title: "Disk",
        x,
        y: { name: "Read and written", unit: "B/s", zero: true },
        series: [flow("read", "readBytes"), flow("written", "writtenBytes")],
      },
      false,
    ],
    [
      {
        title: NETWORK,
        x,
        y: { name: "Received and sent", unit: "B/s", zero: true },
        series: [flow("received", "receivedBytes"), flow("sent", "sentBytes")],
      },
      false,
    ],
  ];
  return plots.flatMap(([plot, always]) => (always || known(plot.series) ? [plot] : []));
}

/** Return a line for each different request; for many tasks one for their sum. */
function requestLines(
  tasks: Lived[],
  asked: AskedByRole,
  name: Amount,
  separate: boolean,
): PlotLine[] {
  const word = (role: string): string => (askedOf(asked, role).isLimit ? "limit" : "requested");
  if (!separate) {
    const sum = sumOf(tasks, asked, name);
    return sum === null ? [] : [{ name: word(tasks[0]?.role ?? ""), value: sum }];
  }
  const roles = [...new Set(tasks.map((t) => t.role))];
  const lines = roles.flatMap((role) => {
    const value = askedOf(asked, role)[name];
    return value === null ? [] : [{ role, value }];
  });
  const [first] = lines;
  if (first && lines.length === roles.length && lines.every((l) => l.value === first.value)) {
    const per = tasks.length > 1 ? " per task" : "";
    return [{ name: `${word(first.role)}${per}`, value: first.value }];
  }
  return lines.map(({ role, value }) => ({ name: `${word(role)} of ${role}`, value }));
}

// ---- efficiency

export interface Efficiency {
  name: string;
  /** Share of what was asked for, 0 to 1; null if nothing was. */
  share: number | null;
  text: string;
  advice: string;
}

const LITTLE = 0.5;
const NEARLY = 0.9;
/** Shorter jobs say nothing about cores, and smaller requests are not worth an advice. */
const SHORT_SECS = 30;
const SMALL = 512 * MIB;
const RAN_OUT = "Memory ran out. Request more.";
const percent = (share: number): string => `${Math.round(share * 100)} %`;

/** Return how much of the requested cores and memory was used, as `seff` does. */
export function efficiency(
  reply: UsageReply,
  lived: Lived[],
  asked: AskedByRole,
  now: number,
): Efficiency[] {
  const value = (name: string, of: "sum" | "max"): number | null => {
    const found = reply.job[name];
    return found && typeof found !== "number" ? found[of] : null;
  };
  const begun = lived.filter((t) => t.startedAt);
  const secs = (t: Lived): number => Math.max(0, (t.endedAt ?? now) - (t.startedAt ?? now));
  const longest = Math.max(0, ...begun.map(secs));
  return [
    cpuEfficiency(value("cpuSecs", "sum"), begun, secs, longest, asked),
    memoryEfficiency(value("peakMemoryBytes", "max"), begun, asked),
  ].flatMap((e) => (e ? [e] : []));
}

function cpuEfficiency(
  used: number | null,
  tasks: Lived[],
  secs: (task: Lived) => number,
  longest: number,
  asked: AskedByRole,
): Efficiency | undefined {
  const whole = tasks.reduce((sum, t) => sum + secs(t), 0);
  if (used === null || whole <= 0) return undefined;
  const mean = used / whole;
  const per = tasks.length > 1 ? " per task" : "";
  const cores = `${mean.toFixed(mean < 10 ? 1 : 0)} cores${per} on average`;
  if (sumOf(tasks, asked, "cores") === null) {
    return { name: "CPU", share: null, text: `${cores}; no cores were requested`, advice: "" };
  }
  const reserved = tasks.reduce((s, t) => s + secs(t) * (askedOf(asked, t.role).cores ?? 0), 0);
  const share = used / reserved;
  const most = Math.max(...tasks.map((t) => askedOf(asked, t.role).cores ?? 0));
  const text = `${percent(share)} of ${plural(most, "core")}${per} over ${duration(longest)}`;
  const fits = Math.max(1, Math.ceil(mean));
  const few = share < LITTLE && longest >= SHORT_SECS;
  const advice = !few
    ? ""
    : fits < most
      ? `It used ${cores}. Request ${plural(fits, "core")}${per}, or let it use more at once.`
      : "It waited most of the time, for example for files or other tasks.";
  return { name: "CPU", share, text, advice };
}

function memoryEfficiency(
  peak: number | null,
  tasks: Lived[],
  asked: AskedByRole,
): Efficiency | undefined {
  if (tasks.length === 0) return undefined;
  const per = tasks.length > 1 ? " in the largest task" : "";
  const requests = tasks.map((t) => askedOf(asked, t.role).memory);
  const ranOut = tasks.some((t) => t.exit?.outOfMemory);
  if (peak === null) return ranOut ? ranOutUnmeasured(requests) : undefined;
  if (requests.includes(null)) {
    const text = `at most ${bytes(peak)}${per}; no memory was requested`;
    return { name: "Memory", share: null, text, advice: ranOut ? RAN_OUT : "" };
  }
  const most = Math.max(...requests.map((r) => r ?? 0));
  const share = peak / most;
  const text = `${percent(share)} of ${bytes(most)}: at most ${bytes(peak)}${per}`;
  if (ranOut) {
    return { name: "Memory", share, text, advice: RAN_OUT };
  }
  const fits = Math.ceil((peak * 1.25) / (64 * MIB)) * 64 * MIB;
  if (share > NEARLY) {
    const advice = "This is close to what was requested. Request more to be safe.";
    return { name: "Memory", share, text, advice };
  }
  const advice =
    share < LITTLE && most >= SMALL && fits < most ? `Request about ${bytes(fits)}.` : "";
  return { name: "Memory", share, text, advice };
}

/** Memory may run out before the first sample, and an engine that kills tells no peak. */
function ranOutUnmeasured(requests: (number | null)[]): Efficiency {
  const most = Math.max(...requests.map((r) => r ?? 0));
  const text =
    most > 0
      ? `the peak was not measured; the limit is ${bytes(most)}`
      : "the peak was not measured";
  return { name: "Memory", share: null, text, advice: RAN_OUT };
}
