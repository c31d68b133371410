// Numbers on paper: scales, round ticks, axes with labels, the colour legend. Draws on a canvas context; knows no pictures.

import { css, table } from "./colours.js";

export const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif';
const LEGEND_WIDTH = 14;
const TICK = 5;
/** More would take the place of the picture. Ticks that only differ beyond have one number, at the first of them. */
const MOST_DECIMALS = 8;

/** Round numbers within [low, high], about `wanted` of them: steps of 1, 2 or 5 times a power of ten. */
export function ticks(low, high, wanted) {
  const span = high - low;
  if (!(span > 0) || !Number.isFinite(span)) return [low];
  const rough = span / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const out = [];
  const first = Math.ceil(low / step - 1e-9);
  // counted, since adding 1 to a very large number may not change it
  for (let n = 0; n <= 2 * wanted + 2 && (first + n) * step <= high + step * 1e-9; n += 1) out.push((first + n) * step);
  return out.length ? out : [low];
}

/** Ticks as texts, all in one form: the same digits, and the same exponent where the numbers are very large or very small. */
export function tickTexts(values) {
  if (values.length < 2) return values.map(valueText);
  const step = stepOf(values);
  const largest = Math.max(...values.map(Math.abs));
  const [top, low] = [digits(largest), digits(step)];
  let exponent = 0;
  if (largest >= 1e6 || largest < 1e-4) exponent = top - low <= 2 ? low : top;
  const decimals = Math.min(MOST_DECIMALS, Math.max(0, exponent - low));
  const text = (value) => `${(value / 10 ** exponent).toFixed(decimals)}${exponent ? `e${exponent}` : ""}`.replace(/-/g, "−");
  const texts = values.map((value) => (Math.abs(value) <= step * 1e-6 ? "0" : text(value)));
  return texts.map((said, n) => (said === texts[n - 1] ? "" : said));
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

function widest(context, texts) {
  context.font = FONT;
  return Math.ceil(Math.max(...texts.map((text) => context.measureText(text).width)));
}

/** How wide the numbers of a vertical axis will be. */
export const numbersWidth = (context, range, height) => widest(context, tickTexts(verticalTicks(range, height)));

/** Room that the numbers of a horizontal axis of this width may need beyond either of its ends. */
export const sideRoom = (context, range, width) => Math.ceil(widest(context, tickTexts(horizontalTicks(context, range, width))) / 2) + 2;

/** As many as fit beside each other with their numbers. */
function horizontalTicks(context, range, width) {
  let wanted = Math.max(2, Math.floor(width / 84));
  let shown = ticks(range[0], range[1], wanted);
  const fits = () => shown.length < 2 || widest(context, tickTexts(shown)) + 12 <= scale(range, 0, width)(shown[1]) - scale(range, 0, width)(shown[0]);
  while (!fits()) shown = wanted > 1 ? ticks(range[0], range[1], (wanted -= 1)) : shown.slice(0, 1);
  return shown;
}

/** The text, shortened where it would take more than `room` pixels. */
export function fitted(context, text, room) {
  let said = String(text ?? "");
  if (context.measureText(said).width <= room) return said;
  while (said && context.measureText(`${said}…`).width > room) said = said.slice(0, -1);
  return said && `${said.trimEnd()}…`;
}

/** Width of the picture in the units it is drawn in. */
export const widthOf = (context) => context.canvas.width / context.getTransform().a;

const verticalTicks = (range, height) => ticks(range[0], range[1], Math.max(2, Math.floor(height / 52)));
const stepOf = (shown) => shown[1] - shown[0];

/** box: {left, top, right, bottom} of the plot. grid: with lines through it. */
export function drawAxes(context, box, { xRange, yRange, xLabel, yLabel, colours, grid, numbers }) {
  const x = scale(xRange, box.left, box.right);
  const y = scale(yRange, box.bottom, box.top);
  const acrossTicks = horizontalTicks(context, xRange, box.right - box.left);
  const upTicks = verticalTicks(yRange, box.bottom - box.top);
  context.font = FONT;
  context.lineWidth = 1;
  context.textBaseline = "top";
  context.textAlign = "center";
  const acrossTexts = tickTexts(acrossTicks);
  acrossTicks.forEach((value, n) => {
    const at = Math.round(x(value)) + 0.5;
    line(context, at, grid ? box.top : box.bottom, at, box.bottom + TICK, grid ? colours.grid : colours.line);
    context.fillStyle = colours.soft;
    context.fillText(acrossTexts[n], within(context, acrossTexts[n], at), box.bottom + TICK + 3);
  });
  context.textBaseline = "middle";
  context.textAlign = "right";
  const upTexts = tickTexts(upTicks);
  upTicks.forEach((value, n) => {
    const at = Math.round(y(value)) + 0.5;
    line(context, box.left - TICK, at, grid ? box.right : box.left, at, grid ? colours.grid : colours.line);
    context.fillStyle = colours.soft;
    context.fillText(upTexts[n], box.left - TICK - 3, at);
  });
  context.strokeStyle = colours.line;
  const [left, top] = [Math.round(box.left) + 0.5, Math.round(box.top) + 0.5];
  context.strokeRect(left, top, Math.round(box.right - box.left), Math.round(box.bottom - box.top));
  drawLabels(context, box, xLabel, yLabel, colours, numbers);
  return { x, y };
}

/** The place nearest to `at` where the middle of this text can be, so that none of it is outside of the picture. */
function within(context, text, at) {
  const half = context.measureText(text).width / 2 + 1;
  return Math.max(half, Math.min(widthOf(context) - half, at));
}

function drawLabels(context, box, xLabel, yLabel, colours, numbers) {
  context.fillStyle = colours.ink;
  context.textAlign = "center";
  if (xLabel) {
    context.textBaseline = "top";
    const text = fitted(context, xLabel, widthOf(context) - 4);
    context.fillText(text, within(context, text, (box.left + box.right) / 2), box.bottom + TICK + 21);
  }
  if (yLabel) {
    context.save();
    context.textBaseline = "bottom";
    context.translate(box.left - TICK - 10 - numbers, (box.top + box.bottom) / 2);
    context.rotate(-Math.PI / 2);
    const middle = (box.top + box.bottom) / 2;
    context.fillText(fitted(context, yLabel, 2 * Math.min(middle, box.bottom + TICK + 16 - middle) - 4), 0, 0);
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
  const texts = tickTexts(shown);
  shown.forEach((value, n) => {
    const at = Math.round(y(value)) + 0.5;
    line(context, left + LEGEND_WIDTH, at, left + LEGEND_WIDTH + TICK, at, colours.line);
    context.fillStyle = colours.soft;
    context.fillText(texts[n], left + LEGEND_WIDTH + TICK + 4, at);
  });
}
