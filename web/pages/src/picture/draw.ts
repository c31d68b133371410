/** Pictures on a canvas: heatmaps and points. docs/apps.md describes their data. */

import { type Label, labelText, parseLabel } from "../text/units.ts";
import {
  type Axes,
  type Box,
  barRoom,
  type Colours,
  drawAxes,
  drawBar,
  FONT,
  fitted,
  numbersWidth,
  sideRoom,
} from "./axes.ts";
import { colourTable, cssColour, shadeOf } from "./colours.ts";
import { type Range, type Scale, valueText } from "./ticks.ts";

export interface Curve {
  label: string;
  points: number[];
}

/** The answer of an app: what a picture shows. Every field may be missing or wrong. */
export interface Picture {
  title?: string;
  xLabel?: string;
  yLabel?: string;
  zLabel?: string;
  valueLabel?: string;
  xRange?: number[];
  yRange?: number[];
  zRange?: number[];
  x?: number[];
  y?: number[];
  value?: number[];
  zMatrix?: number[][];
  plots?: Curve[];
  frameIndex?: number;
  frameCount?: number;
}

export type Kind = "heatmap" | "points" | "curves";
export interface Look {
  map: string;
  /** Range of the colours. */
  range: Range | null;
  colours: Colours;
}
/** Describe what lies under a place of the picture, "" outside of it. */
export type Under = (x: number, y: number) => string;

const TOP = 26;
const BELOW = 48;
const LABEL = 18;
const MOST_HEIGHT = 560;
const MOST_NARROW = 24;
/** Shapes more oblong than this are not drawn to scale. */
const OBLONG = 5;
/** So few different whole values are kinds, each with a colour of its own. */
const KINDS = 6;
/** Distance in pixels within which a point is named. */
const NEAR = 14;

/** Return the kind of a picture; null if it is none. */
export function kindOf(data: Picture | undefined): Kind | null {
  if (Array.isArray(data?.zMatrix)) return "heatmap";
  if (Array.isArray(data?.plots)) return "curves";
  return Array.isArray(data?.x) && Array.isArray(data?.y) ? "points" : null;
}

/** Return the range of the values that colours show; null without such values. */
export function valueRange(data: Picture): Range | null {
  const values = data.zMatrix ?? (data.value ? [data.value] : null);
  return values && extent(values);
}

/** Describe the picture for those who do not see it. */
export function described(data: Picture): string {
  const title = labelText(data.title) || "Picture";
  const range = valueRange(data);
  const values = range ? ` with values from ${valueText(range[0])} to ${valueText(range[1])}` : "";
  const what = kindOf(data) === "points" ? `${data.x?.length ?? 0} points` : "Colour map";
  return `${title}. ${what}${values}.`;
}

function extent(lists: number[][]): Range {
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const list of lists) {
    for (const value of list) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : [0, 1];
}

function spanOf(given: number[] | undefined, values: number[]): Range {
  const [low, high] = Array.isArray(given) ? given : [];
  const range: Range = low !== undefined && high !== undefined ? [low, high] : extent([values]);
  if (range[1] > range[0]) return range;
  const room = Math.abs(range[0]) * 0.1 || 1;
  return [range[0] - room, range[0] + room];
}

/** Draw a heatmap or points as wide as the canvas is. */
export function draw(canvas: HTMLCanvasElement, data: Picture, look: Look): Under {
  const context = canvas.getContext("2d");
  if (!context) return () => "";
  return data.zMatrix
    ? drawHeatmap(context, data, data.zMatrix, look)
    : drawPoints(context, data, look);
}

/** Give the canvas this height, and as many pixels as the screen has there. */
function fit(context: CanvasRenderingContext2D, height: number): void {
  const { canvas } = context;
  const ratio = window.devicePixelRatio || 1;
  canvas.style.setProperty("height", `${height}px`);
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(height * ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, canvas.clientWidth, height);
}

/** Return the place of a picture: to scale where that is sensible, not higher than a screen. */
function place(
  context: CanvasRenderingContext2D,
  { xRange, yRange, yLabel }: Axes,
  range: Range | null,
  barLabel: string,
): Box {
  const width = context.canvas.clientWidth;
  const shape = (xRange[1] - xRange[0]) / (yRange[1] - yRange[0]);
  const isToScale = shape > 1 / OBLONG && shape < OBLONG;
  const most = Math.min(MOST_HEIGHT, Math.max(260, window.innerHeight * 0.55)) - TOP - BELOW;
  let [left, right, across, up] = [12, 12, width, most];
  // how wide the numbers are depends on the height, and the height on how wide they are
  for (let round = 0; round < 3; round += 1) {
    const side = sideRoom(context, xRange, across);
    const numbers = numbersWidth(context, yRange, up);
    left = Math.max(left, numbers + 12 + (yLabel ? LABEL : 0), side);
    right = Math.max(right, side, range ? barRoom(context, range, up, barLabel) + 4 : 0);
    across = Math.max(MOST_NARROW, width - left - right);
    up = isToScale ? across / shape : Math.min(most, across * 0.5);
    if (up > most) [across, up] = [isToScale ? most * shape : across, most];
  }
  fit(context, Math.round(up + TOP + BELOW));
  const spare = Math.max(0, (width - left - right - across) / 2);
  return { left: left + spare, top: TOP, right: left + spare + across, bottom: TOP + up };
}

function drawTitle(
  context: CanvasRenderingContext2D,
  box: Box,
  title: string,
  { colours }: Look,
): number {
  context.font = `600 ${FONT}`;
  context.fillStyle = colours.ink;
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  const text = fitted(context, title, context.canvas.clientWidth - box.left - 4);
  context.fillText(text, box.left, TOP - 9);
  return context.measureText(text).width;
}

const axesOf = (data: Picture, xs: number[], ys: number[]): Axes => ({
  xRange: spanOf(data.xRange, xs),
  yRange: spanOf(data.yRange, ys),
  xLabel: labelText(data.xLabel),
  yLabel: labelText(data.yLabel),
});

function drawHeatmap(
  context: CanvasRenderingContext2D,
  data: Picture,
  rows: number[][],
  look: Look,
): Under {
  const [ny, nx] = [rows.length, rows[0]?.length ?? 0];
  const axes = axesOf(data, [0, nx], [0, ny]);
  const shown = look.range ?? extent(rows);
  const label = labelText(data.zLabel);
  const box = place(context, axes, shown, label);
  const [width, height] = [box.right - box.left, box.bottom - box.top];
  if (nx && ny) {
    context.imageSmoothingEnabled = false;
    const cells = cellsOf(rows, nx, ny, shown, look.map);
    context.drawImage(cells, box.left, box.top, width, height);
  }
  const numbers = numbersWidth(context, axes.yRange, height);
  const { x, y } = drawAxes(context, box, axes, look.colours, numbers);
  drawBar(context, box, shown, look.map, label, look.colours);
  drawTitle(context, box, labelText(data.title), look);
  return inside(box, (px, py) => {
    const column = Math.min(nx - 1, Math.floor(((px - box.left) / width) * nx));
    const row = Math.min(ny - 1, Math.floor(((box.bottom - py) / height) * ny));
    return placeText(data, x.back(px), y.back(py), data.zLabel ?? "", rows[row]?.[column]);
  });
}

/** Return what lies at a place: "x 1.2 cm   y 3 cm   Temperature 40 °C". */
function placeText(data: Picture, x: number, y: number, label?: string, value?: number): string {
  const parts: [Label, string, number | undefined][] = [
    [parseLabel(data.xLabel), "x", x],
    [parseLabel(data.yLabel), "y", y],
  ];
  if (label !== undefined) parts.push([parseLabel(label), "Value", value]);
  return parts
    .map(([{ name, unit }, other, number]) =>
      `${name || other} ${valueText(number)} ${unit}`.trim(),
    )
    .join("   ");
}

/** Return a canvas with one pixel for each cell. The first row of the matrix is the lowest. */
export function cellsOf(
  rows: number[][],
  nx: number,
  ny: number,
  [low, high]: Range,
  map: string,
): HTMLCanvasElement {
  const image = new ImageData(nx, ny);
  const shades = colourTable(map);
  for (let row = 0; row < ny; row += 1) {
    const values = rows[ny - 1 - row] ?? [];
    for (let column = 0; column < nx; column += 1) {
      const shade = shadeOf(values[column] ?? low, low, high) * 3;
      image.data.set(shades.subarray(shade, shade + 3), (row * nx + column) * 4);
      image.data[(row * nx + column) * 4 + 3] = 255;
    }
  }
  const cells = document.createElement("canvas");
  [cells.width, cells.height] = [nx, ny];
  cells.getContext("2d")?.putImageData(image, 0, 0);
  return cells;
}

function drawPoints(context: CanvasRenderingContext2D, data: Picture, look: Look): Under {
  const points = { xs: data.x ?? [], ys: data.y ?? [] };
  const axes = axesOf(data, points.xs, points.ys);
  const values = Array.isArray(data.value) ? data.value : null;
  const kinds = values && kindsOf(values);
  const shown = values && !kinds ? (look.range ?? extent([values])) : null;
  const label = labelText(data.valueLabel);
  const box = place(context, axes, shown, label);
  const numbers = numbersWidth(context, axes.yRange, box.bottom - box.top);
  const { x, y } = drawAxes(context, box, axes, look.colours, numbers);
  const colourOf = pointColour(kinds, shown, look);
  const groups = new Map<string, number[]>();
  for (let n = 0; n < points.xs.length; n += 1) {
    const colour = colourOf(values?.[n] ?? 0);
    const members = groups.get(colour);
    if (members) members.push(n);
    else groups.set(colour, [n]);
  }
  context.save();
  context.beginPath();
  context.rect(box.left, box.top, box.right - box.left, box.bottom - box.top);
  context.clip();
  const radius = pointRadius(points.xs.length, box);
  for (const [colour, members] of groups) discs(context, members, colour, radius, points, x, y);
  context.restore();
  if (shown) drawBar(context, box, shown, look.map, label, look.colours);
  const taken = drawTitle(context, box, labelText(data.title), look);
  if (kinds) drawKeys(context, box, kinds, label, taken, look.colours);
  return inside(box, (px, py) => {
    const at = nearest(points, x, y, px, py);
    if (at < 0) return placeText(data, x.back(px), y.back(py));
    const name = values ? (data.valueLabel ?? "") : undefined;
    return placeText(data, points.xs[at] ?? 0, points.ys[at] ?? 0, name, values?.[at]);
  });
}

function pointColour(
  kinds: number[] | null,
  shown: Range | null,
  { map, colours }: Look,
): (value: number) => string {
  const first = colours.plots[0] ?? colours.ink;
  if (kinds) return (value) => colours.plots[kinds.indexOf(value)] ?? first;
  if (!shown) return () => first;
  const shades = colourTable(map);
  return (value) => cssColour(shades, shadeOf(value, ...shown));
}

function kindsOf(values: number[]): number[] | null {
  const found = new Set<number>();
  for (const value of values) {
    if (!Number.isInteger(value)) return null;
    found.add(value);
    if (found.size > KINDS) return null;
  }
  return [...found].sort((a, b) => a - b);
}

/** Return a radius with which a full plate of points is just covered. */
function pointRadius(count: number, box: Box): number {
  const area = (box.right - box.left) * (box.bottom - box.top);
  return Math.max(1, Math.min(5, Math.sqrt(area / Math.max(1, count)) * 0.54));
}

interface Points {
  xs: number[];
  ys: number[];
}

function discs(
  context: CanvasRenderingContext2D,
  members: number[],
  colour: string,
  radius: number,
  { xs, ys }: Points,
  x: Scale,
  y: Scale,
): void {
  context.fillStyle = colour;
  context.beginPath();
  for (const n of members) {
    const [cx, cy] = [x(xs[n] ?? 0), y(ys[n] ?? 0)];
    context.moveTo(cx + radius, cy);
    context.arc(cx, cy, radius, 0, 2 * Math.PI);
  }
  context.fill();
}

function nearest({ xs, ys }: Points, x: Scale, y: Scale, px: number, py: number): number {
  let best = -1;
  let distance = NEAR ** 2;
  for (let n = 0; n < xs.length; n += 1) {
    const there = (x(xs[n] ?? 0) - px) ** 2 + (y(ys[n] ?? 0) - py) ** 2;
    if (there < distance) [best, distance] = [n, there];
  }
  return best;
}

/** Draw what each colour means: beside the title, or in the corner if there is no room. */
function drawKeys(
  context: CanvasRenderingContext2D,
  box: Box,
  kinds: number[],
  label: string,
  taken: number,
  colours: Colours,
): void {
  context.font = FONT;
  context.textBaseline = "middle";
  context.textAlign = "left";
  const keys = kinds.map((k) =>
    fitted(context, `${label || "value"} ${k}`, box.right - box.left - 48),
  );
  const widths = keys.map((text) => context.measureText(text).width + 36);
  const whole = widths.reduce((a, b) => a + b, -16);
  const isBeside = whole + taken + 24 <= box.right - box.left;
  let at = isBeside ? box.right - whole : box.right - Math.max(...widths) + 6;
  if (!isBeside) {
    context.globalAlpha = 0.85;
    context.fillStyle = colours.card;
    context.fillRect(at - 8, box.top + 4, box.right - at + 4, keys.length * 18 + 6);
    context.globalAlpha = 1;
  }
  for (const [n, text] of keys.entries()) {
    const y = isBeside ? TOP - 13 : box.top + 16 + n * 18;
    context.fillStyle = colours.plots[n] ?? colours.ink;
    context.fillRect(at, y - 4, 9, 9);
    context.fillStyle = colours.soft;
    context.fillText(text, at + 15, y);
    if (isBeside) at += widths[n] ?? 0;
  }
}

const inside =
  (box: Box, say: Under): Under =>
  (x, y) =>
    x >= box.left && x <= box.right && y >= box.top && y <= box.bottom ? say(x, y) : "";
