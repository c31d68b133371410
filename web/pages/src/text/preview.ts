/** What kind of file bytes are, and tables of text. Pure. */

import type { PlotData } from "./plot_data.ts";

export type FileKind = "image" | "text" | "binary";

const starts = (bytes: Uint8Array, ...wanted: number[]): boolean =>
  wanted.every((b, n) => bytes[n] === b);
const ascii = (bytes: Uint8Array, from: number, to: number): string =>
  String.fromCharCode(...bytes.subarray(from, to));

/** Return the type of a picture by its first bytes. SVG is text: it is never drawn. */
export function imageType(bytes: Uint8Array): string | null {
  if (starts(bytes, 0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a)) return "image/png";
  if (starts(bytes, 0xff, 0xd8, 0xff)) return "image/jpeg";
  if (/^GIF8[79]a$/.test(ascii(bytes, 0, 6))) return "image/gif";
  if (ascii(bytes, 0, 4) === "RIFF" && ascii(bytes, 8, 12) === "WEBP") return "image/webp";
  if (ascii(bytes, 0, 2) === "BM" && bytes.length > 26 && bytes[14] === 40) return "image/bmp";
  return null;
}

/** Return what the first bytes of a file are. */
export function kindOf(bytes: Uint8Array): FileKind {
  if (imageType(bytes)) return "image";
  if (bytes.includes(0)) return "binary";
  const text = new TextDecoder("utf-8").decode(bytes, { stream: true });
  const odd = [...text].filter((c) => c === "\ufffd").length;
  return odd > text.length / 50 ? "binary" : "text";
}

export interface Table {
  head: string[];
  rows: string[][];
}

/** Return whether a name is that of a table. */
export const isTable = (name: string): boolean => /\.(csv|tsv)$/i.test(name);

/** Return the character between fields: the one that occurs most often in the first line. */
function separator(text: string): string {
  const line = text.slice(0, text.search(/[\r\n]|$/));
  const counts = [",", ";", "\t"].map((c) => [line.split(c).length, c] as const);
  return counts.reduce((best, next) => (next[0] > best[0] ? next : best))[1];
}

/** Columns of a table; a page cannot show many more. */
export const MOST_COLUMNS = 200;

/**
 * Return the table of a text (RFC 4180), with the first line as head, without columns beyond
 * MOST_COLUMNS. cut: the text is the beginning of a longer one, so its last line is left out. most:
 * rows.
 */
export function table(text: string, cut: boolean, most: number): Table {
  const between = separator(text);
  // a field in quotes, or up to the next separator; and what ends it
  const field = new RegExp(
    `(?:"((?:[^"]|"")*)"(?=${between}|\\r|\\n|$)|([^${between}\\r\\n]*))(${between}|\\r\\n?|\\n|$)`,
    "y",
  );
  const rows: string[][] = [];
  let row: string[] = [];
  while (field.lastIndex < text.length && rows.length <= most) {
    const [, inQuotes, plain = "", end] = field.exec(text) ?? [];
    if (row.length < MOST_COLUMNS)
      row.push(inQuotes === undefined ? plain : inQuotes.replaceAll('""', '"'));
    if (end === between) continue;
    if (row.length > 1 || row[0] !== "") rows.push(row);
    row = [];
  }
  const isPart = cut && !/[\r\n]$/.test(text) && rows.length <= most;
  const [head = [], ...rest] = isPart ? rows.slice(0, -1) : rows;
  return { head, rows: rest.slice(0, most) };
}

const NUMBER = /^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$/;

/** Return the columns that are numbers, by index: most of their values are, and none is a word. */
export function numericColumns({ head, rows }: Table): number[] {
  return head.flatMap((_, n) => {
    const values = rows.map((r) => r[n] ?? "").filter((v) => v.trim() !== "");
    const ok = values.length > 1 && values.every((v) => NUMBER.test(v) || /^\s*nan\s*$/i.test(v));
    return ok ? [n] : [];
  });
}

/** Split "size (mm)" or "size [mm]" into name and unit. */
function nameAndUnit(head: string): [string, string] {
  const found = /^(.*?)\s*[([]([^()[\]]{1,12})[)\]]\s*$/.exec(head);
  return found?.[1] ? [found[1], found[2] ?? ""] : [head || "value", ""];
}

const MOST_SERIES = 8;

/** Return the plot of the numbers over one of them (-1: the row), or null if there are none. */
export function tablePlot(found: Table, x: number, title: string): PlotData | null {
  const numeric = numericColumns(found).filter((n) => n !== x);
  if (numeric.length === 0) return null;
  const number = (row: string[], n: number): number | null => {
    const value = Number.parseFloat(row[n] ?? "");
    return Number.isFinite(value) ? value : null;
  };
  const points = found.rows
    .map((row, n) => ({ at: x < 0 ? n + 1 : number(row, x), row }))
    .filter((p): p is { at: number; row: string[] } => p.at !== null)
    .sort((a, b) => a.at - b.at);
  const [name, unit] = x < 0 ? ["Row", ""] : nameAndUnit(found.head[x] ?? "");
  const shown = numeric.slice(0, MOST_SERIES);
  const units = new Set(shown.map((n) => nameAndUnit(found.head[n] ?? "")[1]));
  const [only = ""] = units;
  const series = shown.map((n) => {
    const [own] = nameAndUnit(found.head[n] ?? "");
    return {
      name: units.size > 1 ? (found.head[n] ?? "") : own,
      values: points.map((p) => number(p.row, n)),
    };
  });
  return {
    title,
    x: { name, unit, values: points.map((p) => p.at) },
    y: {
      name: shown.length === 1 ? (series[0]?.name ?? "Value") : "Value",
      unit: units.size > 1 ? "" : only,
    },
    series: distinct(series),
  };
}

/** Give columns of the same name different ones: the legend chooses by name. */
function distinct<T extends { name: string }>(series: T[]): T[] {
  const seen = new Map<string, number>();
  return series.map((s) => {
    const count = (seen.get(s.name) ?? 0) + 1;
    seen.set(s.name, count);
    return count > 1 ? { ...s, name: `${s.name} ${count}` } : s;
  });
}

/** Return the column that is probably the axis: the first numbers that only grow; -1 if none do. */
export function likelyAxis(found: Table): number {
  const grows = (n: number): boolean => {
    const values = found.rows.map((r) => Number.parseFloat(r[n] ?? ""));
    return values.every((v, m) => m === 0 || v > (values[m - 1] ?? Number.NaN));
  };
  const numeric = numericColumns(found);
  return numeric.length > 1 ? (numeric.find(grows) ?? -1) : -1;
}
