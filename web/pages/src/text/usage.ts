/** Accounted usage by month and day. Days and months are UTC, as the product counts. Pure. */

import { duration } from "./format.ts";

export interface UsageRow {
  month?: string;
  day?: string;
  runs: number;
  cpuSecs: number;
  gpuSecs: number;
  wallSecs: number;
  cpuUnknown: number;
  wallUnknown: number;
}

export interface UsageReply {
  rows: UsageRow[];
  total: UsageRow;
}

export type Measure = "cpu" | "gpu" | "wall" | "jobs";

export const MEASURES: { name: Measure; label: string }[] = [
  { name: "jobs", label: "Jobs ended" },
  { name: "cpu", label: "CPU time" },
  { name: "wall", label: "Run time" },
  { name: "gpu", label: "GPU time" },
];

const FIELDS = { cpu: "cpuSecs", gpu: "gpuSecs", wall: "wallSecs", jobs: "runs" } as const;

export const amountOf = (row: UsageRow, measure: Measure): number => row[FIELDS[measure]];

/** Return the value for people. A "+" marks a lower bound. */
export function valueText(row: UsageRow, measure: Measure): string {
  const value = amountOf(row, measure);
  if (measure === "jobs") return value.toLocaleString();
  const unknown = measure === "cpu" ? row.cpuUnknown : row.wallUnknown;
  return `${value === 0 ? "0 s" : duration(value)}${unknown ? "+" : ""}`;
}

const MONTH = /^\d{4}-(0[1-9]|1[0-2])$/;

export const monthAt = (unixSecs: number): string =>
  new Date(unixSecs * 1000).toISOString().slice(0, 7);

/** Return the month of an address, or the present one. */
export const parseMonth = (text: string | undefined, now: number): string =>
  text && MONTH.test(text) ? text : monthAt(now);

export const parseMeasure = (text: string | undefined): Measure =>
  MEASURES.find((m) => m.name === text)?.name ?? "jobs";

/** Return the month that lies this many months before another. */
export function monthBefore(month: string, count: number): string {
  const [year, of] = month.split("-").map(Number) as [number, number];
  return monthAt(Date.UTC(year, of - 1 - count, 1) / 1000);
}

/** Return a month for people: "November 2026". */
export const monthName = (month: string): string =>
  new Date(`${month}-01T00:00:00Z`).toLocaleString(undefined, {
    year: "numeric",
    month: "long",
    timeZone: "UTC",
  });

export interface Day {
  /** 1 to 31 */
  day: number;
  row: UsageRow | undefined;
}

/** Return all days of a month. Of older months only the sum is known: then no day has a row. */
export function daysOf(month: string, rows: UsageRow[]): Day[] {
  const [year, of] = month.split("-").map(Number) as [number, number];
  const count = new Date(Date.UTC(year, of, 0)).getUTCDate();
  return Array.from({ length: count }, (_, n) => {
    const date = `${month}-${String(n + 1).padStart(2, "0")}`;
    return { day: n + 1, row: rows.find((r) => r.day === date) };
  });
}
