/** Axes and colour bar of a picture, drawn on a canvas with complete labels. */

import { colourTable, cssColour } from "./colours.ts";
import { type Range, type Scale, scale, ticks, tickTexts } from "./ticks.ts";

export const FONT =
  '12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif';
const BAR_WIDTH = 14;
const TICK = 5;
const LINE = 16;

export interface Box {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

export interface Colours {
  ink: string;
  soft: string;
  edge: string;
  card: string;
  plots: string[];
}

export interface Axes {
  xRange: Range;
  yRange: Range;
  xLabel: string;
  yLabel: string;
}

type Context = CanvasRenderingContext2D;

function widest(context: Context, texts: string[]): number {
  context.font = FONT;
  return Math.ceil(Math.max(...texts.map((text) => context.measureText(text).width)));
}

const verticalTicks = (range: Range, height: number): number[] =>
  ticks(...range, Math.max(2, Math.floor(height / 52)));

/** Return the width of the numbers of a vertical axis. */
export const numbersWidth = (context: Context, range: Range, height: number): number =>
  widest(context, tickTexts(verticalTicks(range, height)));

/** Return the room that the numbers of a horizontal axis may need beyond either of its ends. */
export const sideRoom = (context: Context, range: Range, width: number): number =>
  Math.ceil(widest(context, tickTexts(horizontalTicks(context, range, width))) / 2) + 2;

/** Return as many ticks as fit beside each other with their numbers. */
function horizontalTicks(context: Context, range: Range, width: number): number[] {
  const at = scale(range, 0, width);
  const fits = (shown: number[]): boolean => {
    const [one, two] = shown;
    if (one === undefined || two === undefined) return true;
    return widest(context, tickTexts(shown)) + 12 <= at(two) - at(one);
  };
  for (let wanted = Math.max(2, Math.floor(width / 84)); wanted > 0; wanted -= 1) {
    const shown = ticks(...range, wanted);
    if (fits(shown)) return shown;
  }
  return ticks(...range, 1).slice(0, 1);
}

/** Return the text, shortened where it would take more than `room` pixels. */
export function fitted(context: Context, text: string, room: number): string {
  // no letter is narrower than a pixel; a canvas measures long texts slowly
  const said = text.slice(0, Math.max(0, Math.ceil(room)) + 1);
  if (said === text && context.measureText(said).width <= room) return said;
  let [fits, beyond] = [0, said.length + 1];
  while (fits + 1 < beyond) {
    const middle = (fits + beyond) >> 1;
    if (context.measureText(`${said.slice(0, middle)}…`).width <= room) fits = middle;
    else beyond = middle;
  }
  return fits > 0 ? `${said.slice(0, fits).trimEnd()}…` : "";
}

/** Return the width of the canvas in the units in which it is drawn. */
const widthOf = (context: Context): number => context.canvas.width / context.getTransform().a;

/** Draw frame, ticks, numbers and labels. numbers: width of the numbers of the vertical axis. */
export function drawAxes(
  context: Context,
  box: Box,
  axes: Axes,
  colours: Colours,
  numbers: number,
): { x: Scale; y: Scale } {
  const x = scale(axes.xRange, box.left, box.right);
  const y = scale(axes.yRange, box.bottom, box.top);
  context.font = FONT;
  context.lineWidth = 1;
  context.textBaseline = "top";
  context.textAlign = "center";
  const across = horizontalTicks(context, axes.xRange, box.right - box.left);
  for (const [n, text] of tickTexts(across).entries()) {
    const at = Math.round(x(across[n] ?? 0)) + 0.5;
    line(context, at, box.bottom, at, box.bottom + TICK, colours.edge);
    context.fillStyle = colours.soft;
    context.fillText(text, within(context, text, at), box.bottom + TICK + 3);
  }
  context.textBaseline = "middle";
  context.textAlign = "right";
  const up = verticalTicks(axes.yRange, box.bottom - box.top);
  for (const [n, text] of tickTexts(up).entries()) {
    const at = Math.round(y(up[n] ?? 0)) + 0.5;
    line(context, box.left - TICK, at, box.left, at, colours.edge);
    context.fillStyle = colours.soft;
    context.fillText(text, box.left - TICK - 3, at);
  }
  frame(context, box, colours);
  drawLabels(context, box, axes, colours, numbers);
  return { x, y };
}

function frame(context: Context, box: Box, colours: Colours): void {
  context.strokeStyle = colours.edge;
  const [left, top] = [Math.round(box.left) + 0.5, Math.round(box.top) + 0.5];
  const [width, height] = [box.right - box.left, box.bottom - box.top].map(Math.round);
  context.strokeRect(left, top, width ?? 0, height ?? 0);
}

/** Return the place nearest to `at` where a centred text is completely on the canvas. */
function within(context: Context, text: string, at: number): number {
  const half = context.measureText(text).width / 2 + 1;
  return Math.max(half, Math.min(widthOf(context) - half, at));
}

function drawLabels(
  context: Context,
  box: Box,
  axes: Axes,
  colours: Colours,
  numbers: number,
): void {
  context.fillStyle = colours.ink;
  if (axes.xLabel) {
    context.textAlign = "center";
    context.textBaseline = "top";
    const text = fitted(context, axes.xLabel, widthOf(context) - 4);
    const middle = (box.left + box.right) / 2;
    context.fillText(text, within(context, text, middle), box.bottom + TICK + 21);
  }
  if (axes.yLabel) drawTurned(context, box, axes.yLabel, box.left - TICK - 10 - numbers);
}

/** Draw a text upwards, with its lower side at `right`, in the middle of the box. */
function drawTurned(context: Context, box: Box, text: string, right: number): void {
  const middle = (box.top + box.bottom) / 2;
  const room = 2 * Math.min(middle, box.bottom + TICK + 16 - middle) - 4;
  context.save();
  context.textAlign = "center";
  context.textBaseline = "bottom";
  context.translate(right, middle);
  context.rotate(-Math.PI / 2);
  context.fillText(fitted(context, text, room), 0, 0);
  context.restore();
}

function line(
  context: Context,
  x0: number,
  y0: number,
  x1: number,
  y1: number,
  colour: string,
): void {
  context.strokeStyle = colour;
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

/** Return the room that the colour bar takes, with numbers and label. */
export const barRoom = (context: Context, range: Range, height: number, label: string): number =>
  BAR_WIDTH + 14 + TICK + 4 + numbersWidth(context, range, height) + (label ? LINE + 6 : 0);

/** Draw the colour bar to the right of a picture. label: what its values are, with their unit. */
export function drawBar(
  context: Context,
  box: Box,
  range: Range,
  map: string,
  label: string,
  colours: Colours,
): void {
  const left = Math.round(box.right + 14);
  const shades = colourTable(map);
  const height = box.bottom - box.top;
  for (let row = 0; row < height; row += 1) {
    context.fillStyle = cssColour(shades, Math.round((1 - row / height) * 255));
    context.fillRect(left, box.top + row, BAR_WIDTH, 1.5);
  }
  frame(context, { ...box, left, right: left + BAR_WIDTH - 1 }, colours);
  const y = scale(range, box.bottom, box.top);
  const shown = verticalTicks(range, height);
  context.font = FONT;
  context.textBaseline = "middle";
  context.textAlign = "left";
  const edge = left + BAR_WIDTH;
  for (const [n, text] of tickTexts(shown).entries()) {
    const at = Math.round(y(shown[n] ?? 0)) + 0.5;
    line(context, edge, at, edge + TICK, at, colours.edge);
    context.fillStyle = colours.soft;
    context.fillText(text, edge + TICK + 4, at);
  }
  context.fillStyle = colours.ink;
  if (label) {
    const numbers = numbersWidth(context, range, height);
    drawTurned(context, box, label, edge + TICK + 4 + numbers + 6 + LINE);
  }
}
