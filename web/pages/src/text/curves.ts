/** The curves of an app as a plot. Pure. */

import type { Picture } from "../picture/draw.ts";
import type { PlotData } from "./plot_data.ts";
import { axisLabel, field } from "./plot_data.ts";
import { parseLabel } from "./units.ts";

/** Return the plot of a picture with curves. A unit that all curves have is that of the axis. */
export function plotOf(picture: Picture, report: string): PlotData {
  const plots = Array.isArray(picture.plots) ? picture.plots : [];
  const labels = plots.map((p, n) => {
    const label = parseLabel(p.label);
    return { ...label, name: label.name || `curve ${n + 1}` };
  });
  const given = parseLabel(picture.yLabel);
  const units = new Set(labels.map((l) => l.unit));
  const shared = units.size === 1 ? (labels[0]?.unit ?? "") : "";
  const unit = given.unit || shared;
  const xs = picture.x ?? (plots[0]?.points ?? []).map((_, n) => n);
  const order = ascending(xs);
  const at = <T>(list: T[]): (T | null)[] =>
    order ? order.map((n) => list[n] ?? null) : list.slice(0, xs.length);
  const x = parseLabel(picture.xLabel);
  const title = parseLabel(picture.title);
  return {
    title: axisLabel(title.name, title.unit) || report,
    x: { name: x.name || "x", unit: x.unit, values: order ? order.map((n) => xs[n] ?? 0) : xs },
    y: { name: given.name || (unit ? "Value" : ""), unit },
    series: plots.map((p, n) => ({
      name: unit
        ? (labels[n]?.name ?? "")
        : axisLabel(labels[n]?.name ?? "", labels[n]?.unit ?? ""),
      values: at(p.points),
    })),
  };
}

/** Return the order in which values ascend; undefined if they do. */
function ascending(values: number[]): number[] | undefined {
  if (values.every((v, n) => n === 0 || v >= (values[n - 1] ?? v))) return undefined;
  return values.map((_, n) => n).sort((a, b) => (values[a] ?? 0) - (values[b] ?? 0));
}

/** Return the values of a heatmap or of points as CSV, not rounded. */
export function pictureCsv(picture: Picture): string {
  const rows: (string | number)[][] = [];
  if (picture.zMatrix) {
    const [ny, nx] = [picture.zMatrix.length, picture.zMatrix[0]?.length ?? 0];
    const xs = centres(picture.xRange, nx);
    const head = [`${picture.yLabel ?? "y"} \\ ${picture.xLabel ?? "x"}`, ...xs];
    rows.push(
      head,
      ...centres(picture.yRange, ny).map((y, n) => [y, ...(picture.zMatrix?.[n] ?? [])]),
    );
  } else {
    const { x = [], y = [], value } = picture;
    const names = [picture.xLabel ?? "x", picture.yLabel ?? "y"];
    rows.push([...names, ...(value ? [picture.valueLabel ?? "value"] : [])]);
    for (const [n, at] of x.entries())
      rows.push([at, y[n] ?? "", ...(value ? [value[n] ?? ""] : [])]);
  }
  return `${rows.map((row) => row.map((v) => (typeof v === "number" ? String(v) : field(v))).join(",")).join("\r\n")}\r\n`;
}

const centres = (range: number[] | undefined, count: number): number[] => {
  const [low = 0, high = count] = range ?? [];
  return Array.from({ length: count }, (_, n) =>
    Number((low + ((high - low) * (n + 0.5)) / count).toPrecision(12)),
  );
};
