/** A small drawing of a picture, without axes: for a card. */

import type { Colours } from "./axes.ts";
import { colourTable, cssColour, shadeOf } from "./colours.ts";
import type { Picture } from "./draw.ts";
import { cellsOf, kindOf, valueRange } from "./draw.ts";

export function drawThumbnail(canvas: HTMLCanvasElement, data: Picture, colours: Colours): void {
  const context = canvas.getContext("2d");
  if (!context) return;
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const kind = kindOf(data);
  if (kind === "curves") drawLines(context, data, width, height, colours);
  else if (kind === "heatmap") drawCells(context, data, width, height);
  else if (kind === "points") drawDots(context, data, width, height, colours);
}

const extent = (values: number[]): [number, number] =>
  values.reduce<[number, number]>(
    ([low, high], v) => [Math.min(low, v), Math.max(high, v)],
    [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY],
  );

function drawLines(
  context: CanvasRenderingContext2D,
  { plots = [], x }: Picture,
  width: number,
  height: number,
  colours: Colours,
): void {
  const [low, high] = extent(plots.flatMap((p) => p.points));
  for (const [n, { points }] of plots.entries()) {
    const xs = x ?? points.map((_, i) => i);
    const [from, to] = extent(xs);
    context.beginPath();
    for (const [i, value] of points.entries()) {
      const px = 4 + (((xs[i] ?? 0) - from) / (to - from || 1)) * (width - 8);
      const py = height - 6 - ((value - low) / (high - low || 1)) * (height - 12);
      if (i) context.lineTo(px, py);
      else context.moveTo(px, py);
    }
    context.lineWidth = 1.8;
    context.lineJoin = "round";
    context.strokeStyle = colours.plots[n % colours.plots.length] ?? colours.ink;
    context.stroke();
  }
}

function drawCells(
  context: CanvasRenderingContext2D,
  data: Picture,
  width: number,
  height: number,
): void {
  const rows = data.zMatrix ?? [];
  const [ny, nx] = [rows.length, rows[0]?.length ?? 0];
  const [low = 0, high = 1] = data.zRange ?? valueRange(data) ?? [];
  if (!nx || !ny) return;
  const size = Math.min(width / nx, height / ny);
  const cells = cellsOf(rows, nx, ny, [low, high], "viridis");
  const [left, top] = [(width - nx * size) / 2, (height - ny * size) / 2];
  context.drawImage(cells, left, top, nx * size, ny * size);
}

function drawDots(
  context: CanvasRenderingContext2D,
  { x = [], y = [], value }: Picture,
  width: number,
  height: number,
  colours: Colours,
): void {
  const [[left, right], [low, high]] = [extent(x), extent(y)];
  const size = Math.min((width - 8) / (right - left || 1), (height - 8) / (high - low || 1));
  const [from, to] = extent(value ?? [0]);
  const shades = colourTable("viridis");
  for (let n = 0; n < x.length; n += 1) {
    const shade = cssColour(shades, shadeOf(value?.[n] ?? 0, from, to));
    context.fillStyle = value ? shade : (colours.plots[0] ?? colours.ink);
    const px = width / 2 + ((x[n] ?? 0) - (left + right) / 2) * size;
    const py = height / 2 - ((y[n] ?? 0) - (low + high) / 2) * size;
    context.fillRect(px - 1, py - 1, 2, 2);
  }
}
