// Numbers on paper: scales, round ticks, axes with labels, the colour legend. Draws on a canvas context; knows no pictures.

import { css, table } from "./colours.js";

export const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif';
const LEGEND_WIDTH = 14;
const TICK = 5;

/** Round numbers within [low, high], about `wanted` of them: steps of 1, 2 or 5 times a power of ten. */
export function ticks(low, high, wanted) {
  const span = high - low;
  if (!(span > 0) || !Number.isFinite(span)) return [low];
  const rough = span / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const out = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) out.push(n * step);
  return out;
}

/** A number as a tick shows it; step: the distance of the ticks, which says how many digits count. */
export function tickText(value, step) {
  const size = Math.max(Math.abs(value), Math.abs(step));
  if (value === 0 || Math.abs(value) < Math.abs(step) * 1e-6) return "0";
  if (size >= 1e6 || size < 1e-4) {
    return value.toExponential(Math.max(0, digits(value) - digits(step))).replace("e+", "e").replace("-", "−");
  }
  return value.toFixed(Math.max(0, -digits(step))).replace("-", "−");
}

const digits = (value) => Math.floor(Math.log10(Math.abs(value)) + 1e-9);

/** A number as a person reads it off: four digits that count. */
export function valueText(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e6 || size < 1e-3 ? value.toExponential(3).replace("e+", "e") : String(Number(value.toPrecision(4)));
  return text.replace(/^-/, "−");
}

export function scale([low, high], from, to) {
  const factor = high > low ? (to - from) / (high - low) : 0;
  const there = (value) => (factor ? from + (value - low) * factor : (from + to) / 2);
  there.back = (pixel) => (factor ? low + (pixel - from) / factor : low);
  return there;
}

/** Range with room around it, so that no line runs along the frame. */
export function widened([low, high], share) {
  if (!(high > low)) {
    const room = Math.abs(low) * 0.1 || 1;
    return [low - room, low + room];
  }
  const room = (high - low) * share;
  return [low - room, high + room];
}

/** How wide the numbers of a vertical axis will be. */
export function numbersWidth(context, range, height) {
  const shown = verticalTicks(range, height);
  context.font = FONT;
  return Math.ceil(Math.max(...shown.map((v) => context.measureText(tickText(v, stepOf(shown))).width)));
}

const verticalTicks = (range, height) => ticks(range[0], range[1], Math.max(2, Math.floor(height / 52)));
const stepOf = (shown) => (shown.length > 1 ? shown[1] - shown[0] : Math.abs(shown[0]) || 1);

/** box: {left, top, right, bottom} of the plot. grid: with lines through it. */
export function drawAxes(context, box, { xRange, yRange, xLabel, yLabel, colours, grid, numbers }) {
  const x = scale(xRange, box.left, box.right);
  const y = scale(yRange, box.bottom, box.top);
  const acrossTicks = ticks(xRange[0], xRange[1], Math.max(2, Math.floor((box.right - box.left) / 84)));
  const upTicks = verticalTicks(yRange, box.bottom - box.top);
  context.font = FONT;
  context.lineWidth = 1;
  context.textBaseline = "top";
  context.textAlign = "center";
  for (const value of acrossTicks) {
    const at = Math.round(x(value)) + 0.5;
    line(context, at, grid ? box.top : box.bottom, at, box.bottom + TICK, grid ? colours.grid : colours.line);
    context.fillStyle = colours.soft;
    context.fillText(tickText(value, stepOf(acrossTicks)), at, box.bottom + TICK + 3);
  }
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const value of upTicks) {
    const at = Math.round(y(value)) + 0.5;
    line(context, box.left - TICK, at, grid ? box.right : box.left, at, grid ? colours.grid : colours.line);
    context.fillStyle = colours.soft;
    context.fillText(tickText(value, stepOf(upTicks)), box.left - TICK - 3, at);
  }
  context.strokeStyle = colours.line;
  const [left, top] = [Math.round(box.left) + 0.5, Math.round(box.top) + 0.5];
  context.strokeRect(left, top, Math.round(box.right - box.left), Math.round(box.bottom - box.top));
  drawLabels(context, box, xLabel, yLabel, colours, numbers);
  return { x, y };
}

function drawLabels(context, box, xLabel, yLabel, colours, numbers) {
  context.fillStyle = colours.ink;
  context.textAlign = "center";
  if (xLabel) {
    context.textBaseline = "top";
    context.fillText(xLabel, (box.left + box.right) / 2, box.bottom + TICK + 21);
  }
  if (yLabel) {
    context.save();
    context.textBaseline = "bottom";
    context.translate(box.left - TICK - 10 - numbers, (box.top + box.bottom) / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(yLabel, 0, 0);
    context.restore();
  }
}

function line(context, x0, y0, x1, y1, colour) {
  context.strokeStyle = colour;
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
}

/** Room that the colour legend takes, numbers included. */
export const legendRoom = (context, range, height) => LEGEND_WIDTH + 14 + TICK + 4 + numbersWidth(context, range, height);

/** The colour legend to the right of a plot. */
export function drawLegend(context, box, range, map, colours) {
  const left = Math.round(box.right + 14);
  const shades = table(map);
  const height = box.bottom - box.top;
  for (let row = 0; row < height; row += 1) {
    context.fillStyle = css(shades, Math.round((1 - row / height) * 255));
    context.fillRect(left, box.top + row, LEGEND_WIDTH, 1.5);
  }
  context.strokeStyle = colours.line;
  context.strokeRect(left + 0.5, Math.round(box.top) + 0.5, LEGEND_WIDTH - 1, Math.round(height));
  const y = scale(range, box.bottom, box.top);
  const shown = verticalTicks(range, height);
  context.font = FONT;
  context.textBaseline = "middle";
  context.textAlign = "left";
  for (const value of shown) {
    const at = Math.round(y(value)) + 0.5;
    line(context, left + LEGEND_WIDTH, at, left + LEGEND_WIDTH + TICK, at, colours.line);
    context.fillStyle = colours.soft;
    context.fillText(tickText(value, stepOf(shown)), left + LEGEND_WIDTH + TICK + 4, at);
  }
}
