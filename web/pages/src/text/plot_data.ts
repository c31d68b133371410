/** What a plot shows, and its numbers as text: units with prefixes, ticks, CSV, rows of a table. Pure. */

export interface PlotAxis {
  name: string;
  /** "B" and "B/s" get binary prefixes, units such as "V" and "Hz" get those of SI. */
  unit: string;
}

export interface PlotSeries {
  name: string;
  /** One for each value of x; null where nothing is known. */
  values: (number | null)[];
}

/** A horizontal line, as for a limit. It is in the picture only if it is not far above the values. */
export interface PlotLine {
  name: string;
  value: number;
}

/** A moment or place on the x axis. */
export interface PlotMark {
  at: number;
  text: string;
}

export interface PlotData {
  title: string;
  /** Ascending. Unix seconds if `time` is set. start: for times since then. */
  x: PlotAxis & { values: number[]; time?: boolean; start?: number };
  /** zero: the axis begins at 0. */
  y: PlotAxis & { zero?: boolean };
  series: PlotSeries[];
  lines?: PlotLine[];
  marks?: PlotMark[];
}

/** How the numbers of one axis are shown: divided by `factor`, with this unit. */
export interface Scaled {
  factor: number;
  unit: string;
}

const BINARY = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const SI = ["f", "p", "n", "µ", "m", "", "k", "M", "G", "T", "P"];
const SI_ZERO = 5;
/** Units that take a prefix. Others, such as cm² or dB, would be wrong or ambiguous with one. */
const PREFIXED = new Set("m g V A W J N T F H C Ω eV Hz Pa mol bit bit/s eV/c V/m".split(" "));
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
/** A line further above the largest value would make the values flat. */
const FAR = 5;

const superscript = (n: number): string =>
  (n < 0 ? "⁻" : "") +
  [...String(Math.abs(n))].map((digit) => SUPERSCRIPTS[Number(digit)]).join("");

/** Return whether each tick of a logarithmic axis has its unit. */
export const takesPrefix = (unit: string): boolean => isBytes(unit) || PREFIXED.has(unit);

export const isBytes = (unit: string): boolean => unit === "B" || unit === "B/s";

/** Return how to show numbers of up to this size. */
export function scaled(largest: number, unit: string): Scaled {
  const size = Math.abs(largest);
  if (!Number.isFinite(size) || size === 0) return { factor: 1, unit };
  if (isBytes(unit)) {
    const step = clamp(Math.floor(Math.log2(size) / 10), 0, BINARY.length - 1);
    return { factor: 1024 ** step, unit: BINARY[step] + unit };
  }
  const step = Math.floor((Math.log10(size) + 1e-9) / 3);
  if (PREFIXED.has(unit) || (unit === "s" && step < 0)) {
    const at = clamp(step, -SI_ZERO, SI.length - 1 - SI_ZERO);
    return { factor: 1000 ** at, unit: (SI[at + SI_ZERO] ?? "") + unit };
  }
  if (size < 1e6 && size >= 1e-3) return { factor: 1, unit };
  return { factor: 1000 ** step, unit: `×10${superscript(step * 3)} ${unit}`.trim() };
}

const clamp = (value: number, least: number, most: number): number =>
  Math.min(most, Math.max(least, value));

/** Return the label of an axis: "Memory (MiB)". */
export const axisLabel = (name: string, unit: string): string =>
  unit ? `${name} (${unit})` : name;

/** Return a number with about four digits: "1,234", "12.3", "0.05". */
export function digits(value: number): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  const decimals = clamp(3 - Math.floor(Math.log10(size)), 0, 6);
  return Number(value.toFixed(decimals)).toLocaleString("en", { maximumFractionDigits: 6 });
}

/** Return a value with its unit: "12.3 MiB". */
export function amount(value: number, unit: string): string {
  const { factor, unit: shown } = scaled(value, unit);
  return `${digits(value / factor)} ${shown}`.trim();
}

/** A tick that is left out. */
type Tick = number | null;

/** Return the texts of ticks that are `step` apart: all with the same number of decimals. */
export function ticks(values: Tick[], step: number, { factor }: Scaled): string[] {
  let decimals = 0;
  const part = Math.abs(step / factor);
  while (decimals < 6 && Math.abs(part * 10 ** decimals - Math.round(part * 10 ** decimals)) > 1e-6)
    decimals += 1;
  return values.map((v) => {
    if (v === null) return "";
    const shown = v / factor;
    return (Math.abs(shown) < 10 ** -(decimals + 1) ? 0 : shown).toLocaleString("en", {
      minimumFractionDigits: decimals,
      maximumFractionDigits: decimals,
    });
  });
}

/** Return the text of a tick of a logarithmic axis: "10 KiB", "10⁻³". */
export function logTick(value: number, unit: string): string {
  if (takesPrefix(unit)) return amount(value, unit);
  if (value >= 1e-2 && value < 1e5) return digits(value);
  const power = Math.floor(Math.log10(value) + 1e-9);
  const lead = digits(value / 10 ** power);
  return lead === "1" ? `10${superscript(power)}` : `${lead}×10${superscript(power)}`;
}

const SINCE: [number, number, string][] = [
  [3 * 86_400, 86_400, "d"],
  [3 * 3600, 3600, "h"],
  [180, 60, "min"],
  [0, 1, "s"],
];

/** Return how to show durations of up to this many seconds. */
export function sinceScale(secs: number): Scaled {
  const [, factor, unit] = SINCE.find(([least]) => secs >= least) ?? [0, 1, "s"];
  return { factor, unit };
}

/** Return steps of ticks that are round in this unit. */
export const sinceSteps = ({ unit }: Scaled): number[] => {
  const steps = [0.001, 0.01, 0.1, 1, 10, 100, 1000].flatMap((t) => [t, t * 2, t * 5]);
  const sixty = [1, 2, 5, 10, 15, 30];
  if (unit === "min") return [...sixty.map((s) => s), ...steps.map((s) => s * 60)].sort(order);
  if (unit === "h") return [...sixty.map((m) => m * 60), ...steps.map((s) => s * 3600)].sort(order);
  if (unit === "d")
    return [3600, 7200, 21_600, 43_200, ...steps.map((s) => s * 86_400)].sort(order);
  return steps;
};

const order = (a: number, b: number): number => a - b;

const clock = (at: number, step: number): string =>
  new Date(at * 1000).toLocaleTimeString("en-GB", {
    hour: "2-digit",
    minute: "2-digit",
    ...(step < 60 ? { second: "2-digit" } : {}),
    ...(step < 1 ? { fractionalSecondDigits: 1 } : {}),
  });

const day = (at: number): string =>
  new Date(at * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" });

/** Return ticks of local time. A day is named where it begins, if the ticks are in several days. */
export function timeTicks(values: Tick[], step: number): string[] {
  const known = values.filter((at) => at !== null).map(day);
  const several = new Set(known).size > 1;
  let last = "";
  return values.map((at) => {
    if (at === null) return "";
    if (step >= 86_400) return day(at);
    const begins = several && day(at) !== last;
    last = day(at);
    return begins ? `${clock(at, step)}\n${last}` : clock(at, step);
  });
}

/** Return the label of an axis of local time, with the day if it is the only one. */
export function timeLabel(from: number, to: number): string {
  const options = { day: "numeric", month: "short", year: "numeric" } as const;
  const first = new Date(from * 1000).toLocaleDateString("en-GB", options);
  const last = new Date(to * 1000).toLocaleDateString("en-GB", options);
  return first === last ? `Local time, ${first}` : `Local time, ${first} to ${last}`;
}

/** Return a value of x as text, as at the cursor and in the table. */
export function xText({ x }: PlotData, value: number, since: boolean): string {
  if (!x.time) return amount(value, x.unit);
  if (since && x.start !== undefined) {
    const secs = value - x.start;
    const { factor, unit } = sinceScale(Math.abs(secs));
    return `${digits(secs / factor)} ${unit}`;
  }
  return `${day(value)}, ${clock(value, 1)}`;
}

/** Return whether there is something to draw. */
export const hasValues = (plot: PlotData): boolean =>
  plot.series.some((s) => s.values.some((v) => v !== null && Number.isFinite(v)));

/** Return the lines that are not far above the values, and those that are. */
export function splitLines(plot: PlotData): { near: PlotLine[]; far: PlotLine[] } {
  let largest = 0;
  for (const { values } of plot.series)
    for (const v of values) if (v !== null && v > largest) largest = v;
  const lines = plot.lines ?? [];
  return {
    near: lines.filter((l) => l.value <= largest * FAR),
    far: lines.filter((l) => l.value > largest * FAR),
  };
}

/** Return the range of an axis: the values with some space; 0 is included if it is near. */
export function linearRange(least: number, most: number): [number, number] {
  if (!Number.isFinite(least) || !Number.isFinite(most)) return [0, 1];
  if (least === most) {
    const space = Math.abs(most) * 0.1 || 1;
    return [least >= 0 && least - space < 0 ? 0 : least - space, most + space];
  }
  const space = (most - least) * 0.06;
  const low = least >= 0 && least < (most - least) * 0.6 ? 0 : least - space;
  return [low, most + space];
}

/** Return the rows of the table: x, then one value for each series. */
export function rows(plot: PlotData, most: number, since = false): string[][] {
  return plot.x.values.slice(0, most).map((x, n) => [
    xText(plot, x, since),
    ...plot.series.map((s) => {
      const value = s.values[n];
      return value === null || value === undefined ? "–" : amount(value, plot.y.unit);
    }),
  ]);
}

/** Return the values as CSV (RFC 4180), not rounded, with units in the first line. */
export function csv(plot: PlotData): string {
  const { x, y } = plot;
  const start = x.time ? x.start : undefined;
  const head = [
    x.time ? "Time (UTC)" : axisLabel(x.name, x.unit),
    ...(start === undefined ? [] : ["Time since start (s)"]),
    ...plot.series.map((s) => axisLabel(s.name, y.unit)),
  ];
  const lines = x.values.map((value, n) => [
    x.time ? new Date(value * 1000).toISOString() : String(value),
    ...(start === undefined ? [] : [String(Number((value - start).toFixed(3)))]),
    ...plot.series.map((s) => String(s.values[n] ?? "")),
  ]);
  return `${[head.map(field), ...lines].map((line) => line.join(",")).join("\r\n")}\r\n`;
}

/** Return a text as a field. One that a spreadsheet would take for a formula begins with a quote. */
export function field(text: string): string {
  const inert = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(inert) ? `"${inert.replaceAll('"', '""')}"` : inert;
}

/** Return a name for a file: letters, digits, dots and dashes. */
export const fileName = (title: string, suffix: string): string =>
  `${
    title
      .toLowerCase()
      .replace(/[^a-z0-9.]+/g, "-")
      .replace(/^-+|-+$/g, "")
      .slice(0, 60) || "plot"
  }.${suffix}`;

/** Return the width of the range around a single value, in seconds or in the axis' own unit. */
export const singleWidth = (scale: { time?: boolean } | undefined): number =>
  scale?.time ? 60 : 1;

/** Return the range of an axis. That of a single value is `width` wide; uPlot's has 1000 days. */
export function widened(
  values: ArrayLike<number>,
  first: number,
  last: number,
  width: number,
): [number, number] {
  // a range that was chosen by zooming begins elsewhere
  const isWhole = values.length === 1 && first === values[0];
  return isWhole ? [first - width / 2, first + width / 2] : [first, last];
}
