/** Rows of the table of resource usage. Pure. */

import { bytes, duration } from "./format.ts";

interface Measured {
  sum: number | null;
  max: number | null;
  known: number;
  of: number;
}

export interface MetricsReply {
  job: Record<string, Measured | number>;
}

export interface Amount {
  text: string;
  /** For how many tasks it is known, if not for all. */
  note: string;
}

export interface Measure {
  name: string;
  now: Amount | undefined;
  total: Amount | undefined;
  largest: Amount | undefined;
}

type Format = (value: number) => string;
type Part = [string, Format] | undefined;

const percent: Format = (value) => `${value.toFixed(value < 10 ? 1 : 0)} %`;
const rate: Format = (value) => `${bytes(value)}/s`;
const whole: Format = (value) => Math.round(value).toLocaleString();

/** Name; fields and formats of: usage now, total, peak of one task. */
const ROWS: [string, Part, Part, Part][] = [
  [
    "CPU (100 % is one core)",
    ["cpuPercent", percent],
    ["cpuSecs", duration],
    ["peakCpuPercent", percent],
  ],
  [
    "CPU, mean of the whole time",
    undefined,
    ["meanCpuPercent", percent],
    ["meanCpuPercent", percent],
  ],
  ["Memory", ["memoryBytes", bytes], undefined, ["peakMemoryBytes", bytes]],
  ["Read", ["readBytesPerSec", rate], ["readBytes", bytes], ["readBytes", bytes]],
  ["Written", ["writtenBytesPerSec", rate], ["writtenBytes", bytes], ["writtenBytes", bytes]],
  ["Received", undefined, ["receivedBytes", bytes], ["receivedBytes", bytes]],
  ["Sent", undefined, ["sentBytes", bytes], ["sentBytes", bytes]],
  ["Processes", ["processes", whole], undefined, ["peakProcesses", whole]],
  ["GPU", ["gpuPercent", percent], undefined, undefined],
  ["GPU memory", ["gpuMemoryBytes", bytes], undefined, ["peakGpuMemoryBytes", bytes]],
];

/** Return the measures of which something is known. */
export function measures(reply: MetricsReply): Measure[] {
  const amount = (at: [string, Format] | undefined, of: "sum" | "max"): Amount | undefined => {
    const found = at && reply.job[at[0]];
    if (!at || !found || typeof found === "number") return undefined;
    const value = found[of];
    if (value === null || value === undefined) return undefined;
    const note = found.known < found.of ? `(${found.known} of ${found.of} tasks)` : "";
    return { text: at[1](value), note };
  };
  return ROWS.map(([name, now, total, largest]) => ({
    name,
    now: amount(now, "sum"),
    total: amount(total, "sum"),
    largest: amount(largest, "max"),
  })).filter((m) => m.now || m.total || m.largest);
}
