// A picture on a canvas: heatmap, points, curves. Each draws into a canvas of the width it has and the height it needs, and says
// what lies under the pointer. Shapes of the data: docs/apps.md.

import { FONT, drawAxes, drawLegend, fitted, legendRoom, numbersWidth, sideRoom, valueText, widened, widthOf } from "./axes.js";
import { css, index, pageColours, table } from "./colours.js";

const TOP = 30;
const BELOW = 48;
const LABEL = 18;
const MOST_HEIGHT = 560;
const MOST_NARROW = 40;
/** Shapes more oblong than this are not drawn to scale. */
const OBLONG = 5;
/** So few different whole values are kinds, not quantities: each has a colour of its own. */
const KINDS = 6;

/** heatmap, points or curves, by what is in the data; null where it is none of them. */
export function kindOf(data) {
  if (Array.isArray(data?.zMatrix)) return "heatmap";
  if (Array.isArray(data?.plots)) return "curves";
  return Array.isArray(data?.x) && Array.isArray(data?.y) ? "points" : null;
}

/** [low, high] of the values that the colours show; null where they show nothing. */
export function valueRange(data) {
  const values = data.zMatrix ?? (data.value ? [data.value] : null);
  return values && extent(values);
}

/** options: {map, range}: colour map and, for all frames alike, the range of its values. Returns (x, y) -> text. */
export function draw(canvas, data, options) {
  const context = canvas.getContext("2d");
  const colours = pageColours();
  switch (kindOf(data)) {
    case "heatmap":
      return drawHeatmap(canvas, context, data, { ...options, colours });
    case "points":
      return drawPoints(canvas, context, data, { ...options, colours });
    case "curves":
      return drawCurves(canvas, context, data, { ...options, colours });
    default:
      fit(canvas, context, 120);
      return () => "";
  }
}

/** What the picture shows, for those who do not see it. */
export function described(data) {
  const title = data.title || "Picture";
  if (kindOf(data) === "curves") {
    const ends = data.plots.map((p) => `${p.label} ends at ${valueText(p.points.at(-1))}`).join(", ");
    return `${title}. Curves over ${data.xLabel || "x"}: ${ends}.`;
  }
  const range = valueRange(data);
  const values = range ? ` with values from ${valueText(range[0])} to ${valueText(range[1])}` : "";
  return `${title}. ${kindOf(data) === "points" ? `${data.x.length} points` : "Colour map"}${values}.`;
}

function extent(lists) {
  let low = Infinity;
  let high = -Infinity;
  for (const list of lists) {
    for (const value of list) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : [0, 1];
}

/** The canvas gets this height and as many pixels as the screen has there. */
function fit(canvas, context, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return width;
}

function drawTitle(context, box, title, colours) {
  context.font = `600 ${FONT.replace("12px", "13px")}`;
  context.fillStyle = colours.ink;
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  context.fillText(fitted(context, title, widthOf(context) - box.left - 4), box.left, TOP - 12);
}

/** A plot to scale where that is sensible: as wide as it can be, and not higher than a screen. */
function boxToScale(canvas, context, data, { range, xRange, yRange }) {
  const width = canvas.clientWidth;
  const shape = (xRange[1] - xRange[0]) / (yRange[1] - yRange[0]);
  const toScale = shape > 1 / OBLONG && shape < OBLONG;
  const most = Math.min(MOST_HEIGHT, Math.max(260, window.innerHeight * 0.66)) - TOP - BELOW;
  let [left, right, across, up] = [12, 12, width, most];
  // how wide the numbers are depends on the height, and the height on how wide they are
  for (let round = 0; round < 3; round += 1) {
    const side = sideRoom(context, xRange, across);
    left = Math.max(left, numbersWidth(context, yRange, up) + 12 + (data.yLabel ? LABEL : 0), side);
    right = Math.max(right, side, range ? legendRoom(context, range, up) + 4 : 0);
    across = Math.max(MOST_NARROW, width - left - right);
    up = toScale ? across / shape : Math.min(most, across * 0.5);
    if (up > most) [across, up] = [toScale ? most * shape : across, most];
  }
  const height = Math.round(up + TOP + BELOW);
  fit(canvas, context, height);
  const spare = Math.max(0, (width - left - right - across) / 2);
  return { left: left + spare, top: TOP, right: left + spare + across, bottom: TOP + up };
}

function spanOf(given, values) {
  const range = Array.isArray(given) ? [given[0], given[1]] : extent([values]);
  return range[1] > range[0] ? range : widened(range, 0);
}

function drawHeatmap(canvas, context, data, { map, range, colours }) {
  const rows = data.zMatrix;
  const [ny, nx] = [rows.length, rows[0]?.length ?? 0];
  const xRange = spanOf(data.xRange, [0, nx]);
  const yRange = spanOf(data.yRange, [0, ny]);
  const shown = range ?? data.zRange ?? valueRange(data);
  const box = boxToScale(canvas, context, data, { range: shown, xRange, yRange });
  // one pixel a cell, drawn large: the browser's own scaling, without smoothing what was not computed
  const cells = document.createElement("canvas");
  cells.width = nx;
  cells.height = ny;
  if (nx && ny) {
    cells.getContext("2d").putImageData(cellColours(rows, nx, ny, shown, table(map)), 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(cells, box.left, box.top, box.right - box.left, box.bottom - box.top);
  }
  const numbers = numbersWidth(context, yRange, box.bottom - box.top);
  const { x, y } = drawAxes(context, box, { xRange, yRange, xLabel: data.xLabel, yLabel: data.yLabel, colours, grid: false, numbers });
  drawLegend(context, box, shown, map, colours);
  drawTitle(context, box, data.title, colours);
  return inside(box, (px, py) => {
    const column = Math.min(nx - 1, Math.floor(((px - box.left) / (box.right - box.left)) * nx));
    const row = Math.min(ny - 1, Math.floor(((box.bottom - py) / (box.bottom - box.top)) * ny));
    return `x ${valueText(x.back(px))}   y ${valueText(y.back(py))}   value ${valueText(rows[row]?.[column])}`;
  });
}

/** The first row of the matrix is the lowest of the picture. */
function cellColours(rows, nx, ny, [low, high], shades) {
  const image = new ImageData(nx, ny);
  for (let row = 0; row < ny; row += 1) {
    const values = rows[ny - 1 - row];
    for (let column = 0; column < nx; column += 1) {
      const shade = index(values[column], low, high) * 3;
      const at = (row * nx + column) * 4;
      image.data[at] = shades[shade];
      image.data[at + 1] = shades[shade + 1];
      image.data[at + 2] = shades[shade + 2];
      image.data[at + 3] = 255;
    }
  }
  return image;
}

function drawPoints(canvas, context, data, { map, range, colours }) {
  const xRange = spanOf(data.xRange, data.x);
  const yRange = spanOf(data.yRange, data.y);
  const values = Array.isArray(data.value) ? data.value : null;
  const kinds = values && kindsOf(values);
  const shown = values && !kinds ? (range ?? valueRange(data)) : null;
  const box = boxToScale(canvas, context, data, { range: shown, xRange, yRange });
  const numbers = numbersWidth(context, yRange, box.bottom - box.top);
  const { x, y } = drawAxes(context, box, { xRange, yRange, xLabel: data.xLabel, yLabel: data.yLabel, colours, grid: false, numbers });
  context.save();
  context.beginPath();
  context.rect(box.left, box.top, box.right - box.left, box.bottom - box.top);
  context.clip();
  const shades = table(map);
  const colourOf = kinds ? (n) => colours.plots[kinds.indexOf(n)] : (v) => css(shades, index(v, shown[0], shown[1]));
  const groups = grouped(data, values, values ? colourOf : () => colours.plots[0]);
  const radius = pointRadius(data.x.length, box);
  for (const [colour, members] of groups) discs(context, members, colour, radius, data, x, y);
  context.restore();
  if (shown) drawLegend(context, box, shown, map, colours);
  drawTitle(context, box, data.title, colours);
  if (kinds) drawKeys(context, box, kinds.map((k, n) => [`${data.valueLabel ?? "value"} ${k}`, colours.plots[n]]), data.title, colours);
  return inside(box, (px, py) => {
    const at = nearest(data, x, y, px, py, 14);
    if (at < 0) return `x ${valueText(x.back(px))}   y ${valueText(y.back(py))}`;
    const value = values ? `   ${data.valueLabel ?? "value"} ${valueText(values[at])}` : "";
    return `x ${valueText(data.x[at])}   y ${valueText(data.y[at])}${value}`;
  });
}

function kindsOf(values) {
  const found = new Set();
  for (const value of values) {
    if (!Number.isInteger(value)) return null;
    found.add(value);
    if (found.size > KINDS) return null;
  }
  return [...found].sort((a, b) => a - b);
}

/** Points by colour, for a few hundred paths instead of thousands. */
function grouped(data, values, colourOf) {
  const groups = new Map();
  for (let n = 0; n < data.x.length; n += 1) {
    const colour = colourOf(values ? values[n] : 0);
    if (!groups.has(colour)) groups.set(colour, []);
    groups.get(colour).push(n);
  }
  return groups;
}

/** So large that a full plate of them is just covered. */
function pointRadius(count, box) {
  const area = (box.right - box.left) * (box.bottom - box.top);
  return Math.max(1, Math.min(5, Math.sqrt(area / Math.max(1, count)) * 0.54));
}

function discs(context, members, colour, radius, data, x, y) {
  context.fillStyle = colour;
  context.beginPath();
  for (const n of members) {
    const [cx, cy] = [x(data.x[n]), y(data.y[n])];
    context.moveTo(cx + radius, cy);
    context.arc(cx, cy, radius, 0, 2 * Math.PI);
  }
  context.fill();
}

function nearest(data, x, y, px, py, within) {
  let best = -1;
  let distance = within ** 2;
  for (let n = 0; n < data.x.length; n += 1) {
    const there = (x(data.x[n]) - px) ** 2 + (y(data.y[n]) - py) ** 2;
    if (there < distance) [best, distance] = [n, there];
  }
  return best;
}

function drawCurves(canvas, context, data, { colours }) {
  const xs = data.x ?? (data.plots[0]?.points ?? []).map((_, n) => n);
  const height = Math.round(Math.max(280, Math.min(440, canvas.clientWidth * 0.5)));
  const width = fit(canvas, context, height);
  const xRange = spanOf(data.xRange, xs);
  const yRange = widened(extent(data.plots.map((p) => p.points)), 0.06);
  const numbers = numbersWidth(context, yRange, height - TOP - BELOW);
  const side = sideRoom(context, xRange, width);
  const left = Math.max(numbers + 12 + (data.yLabel ? LABEL : 0), side);
  const box = { left, top: TOP + 4, right: Math.max(left + MOST_NARROW, width - Math.max(14, side)), bottom: height - BELOW };
  const { x, y } = drawAxes(context, box, { xRange, yRange, xLabel: data.xLabel, yLabel: data.yLabel, colours, grid: true, numbers });
  data.plots.forEach((plot, n) => curve(context, xs, plot.points, x, y, colours.plots[n % colours.plots.length]));
  drawTitle(context, box, data.title, colours);
  drawKeys(context, box, data.plots.map((p, n) => [p.label, colours.plots[n % colours.plots.length]]), data.title, colours);
  return inside(box, (px) => {
    const at = nearestX(xs, x.back(px));
    const values = data.plots.map((p) => `${p.label} ${valueText(p.points[at])}`).join("   ");
    return `${data.xLabel || "x"} ${valueText(xs[at])}   ${values}`;
  });
}

function curve(context, xs, points, x, y, colour) {
  context.strokeStyle = colour;
  context.lineWidth = 1.8;
  context.lineJoin = "round";
  context.beginPath();
  points.forEach((value, n) => (n ? context.lineTo(x(xs[n]), y(value)) : context.moveTo(x(xs[n]), y(value))));
  context.stroke();
  if (points.length === 1) discs(context, [0], colour, 3, { x: xs, y: points }, x, y);
  context.lineWidth = 1;
}

function nearestX(xs, value) {
  let best = 0;
  for (let n = 1; n < xs.length; n += 1) if (Math.abs(xs[n] - value) < Math.abs(xs[best] - value)) best = n;
  return best;
}

/** What each colour means: in the line of the title where there is room, in the picture's upper corner where there is none. */
function drawKeys(context, box, keys, title, colours) {
  context.font = `600 ${FONT.replace("12px", "13px")}`;
  const taken = context.measureText(title ?? "").width;
  context.font = FONT;
  context.textBaseline = "middle";
  context.textAlign = "left";
  keys = keys.map(([label, colour]) => [fitted(context, label, box.right - box.left - 48), colour]);
  const widths = keys.map(([label]) => context.measureText(label).width + 36);
  const whole = widths.reduce((a, b) => a + b, -16);
  if (whole + taken + 24 <= box.right - box.left) {
    let at = box.right - whole;
    keys.forEach((key, n) => {
      drawKey(context, key, at, TOP - 16, colours);
      at += widths[n];
    });
    return;
  }
  const left = box.right - Math.max(...widths) + 6;
  context.globalAlpha = 0.85;
  context.fillStyle = colours.card;
  context.fillRect(left - 8, box.top + 4, box.right - left + 4, keys.length * 18 + 6);
  context.globalAlpha = 1;
  keys.forEach((key, n) => drawKey(context, key, left, box.top + 16 + n * 18, colours));
}

function drawKey(context, [label, colour], x, y, colours) {
  context.fillStyle = colour;
  context.fillRect(x, y - 2, 14, 3);
  context.fillStyle = colours.soft;
  context.fillText(label, x + 20, y);
}

const inside = (box, say) => (px, py) => (px >= box.left && px <= box.right && py >= box.top && py <= box.bottom ? say(px, py) : "");
