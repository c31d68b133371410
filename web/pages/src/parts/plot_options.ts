/** Options of uPlot for a plot: axes with complete labels and units, colours of the design. */

import type uPlot from "uplot";
import {
  axisLabel,
  isBytes,
  linearRange,
  logTick,
  type PlotData,
  type Scaled,
  scaled,
  sinceScale,
  sinceSteps,
  singleWidth,
  splitLines,
  takesPrefix,
  ticks,
  timeLabel,
  timeTicks,
  widened,
} from "../text/plot_data.ts";

export const COLOURS = 8;
export const colourOf = (n: number): number => (n % COLOURS) + 1;

/** What a reader may change. since: times since the start. log: a logarithmic y axis. */
export interface Shown {
  log: boolean;
  since: boolean;
  hidden: ReadonlySet<string>;
}

const FONT_PX = 12;
const LABEL_PX = 20;
const X_PX = 28;
const TICK_PX = 5;
const GAP_PX = 5;
/** More points than this share of the width hide the line. */
const POINTS = 0.1;

/** Return the data as uPlot wants them. Lines near the values are series of their own. */
export function columns(plot: PlotData, { log, since }: Shown): uPlot.AlignedData {
  const { x } = plot;
  const start = since && x.time ? (x.start ?? 0) : 0;
  const positive = (v: number | null): number | null =>
    v === null || !Number.isFinite(v) || (log && v <= 0) ? null : v;
  return [
    start ? x.values.map((v) => v - start) : x.values,
    ...plot.series.map((s) => s.values.map(positive)),
    ...splitLines(plot).near.map((l) => x.values.map(() => positive(l.value))),
  ];
}

const property = (element: Element, name: string): string =>
  getComputedStyle(element).getPropertyValue(name).trim();

export function options(
  plot: PlotData,
  shown: Shown,
  element: HTMLElement,
  hooks: uPlot.Hooks.Arrays,
  sync: string | undefined,
): uPlot.Options {
  const colour = (name: string): string => property(element, name);
  const font = `${FONT_PX}px ${property(element, "--font") || "sans-serif"}`;
  const axis = {
    stroke: colour("--soft"),
    font,
    labelFont: font,
    labelSize: LABEL_PX,
    gap: GAP_PX,
  };
  const lines = { stroke: colour("--plot-grid"), width: 1 };
  const size = (u: uPlot, texts: string[] | null): number => {
    u.ctx.font = `${FONT_PX * devicePixelRatio}px ${property(element, "--font") || "sans-serif"}`;
    const widths = (texts ?? []).map((t) => u.ctx.measureText(t ?? "").width / devicePixelRatio);
    return Math.ceil(Math.max(16, ...widths)) + TICK_PX + GAP_PX + 3;
  };
  const xs = xAxis(plot, shown);
  return {
    width: element.clientWidth,
    height: element.clientHeight,
    legend: { show: false },
    scales: {
      x: {
        time: Boolean(plot.x.time) && !shown.since,
        range: (u, first, last) => widened(u.data[0], first, last, singleWidth(u.scales.x)),
      },
      y: shown.log
        ? { distr: 3, log: isBytes(plot.y.unit) ? 2 : 10 }
        : {
            range: (_u, least, most) =>
              linearRange(plot.y.zero ? Math.min(0, least ?? 0) : least, most),
          },
    },
    // half of the widest text of a tick: the last one is never clipped
    padding: [10, 34, 0, 0],
    cursor: {
      drag: { x: true, y: false, dist: 5 },
      points: { size: 7 },
      ...(sync ? { sync: { key: sync } } : {}),
    },
    axes: [
      {
        ...axis,
        grid: lines,
        ticks: { ...lines, size: TICK_PX },
        size: (_u, texts) => X_PX + (texts?.some((t) => t.includes("\n")) ? FONT_PX + 4 : 0),
        filter: inside,
        ...xs,
      },
      {
        ...axis,
        grid: lines,
        ticks: { ...lines, size: TICK_PX },
        size,
        ...yAxis(plot, shown),
      },
    ],
    series: [
      {},
      ...plot.series.map((s, n) => ({
        stroke: colour(`--plot-${colourOf(n)}`),
        width: 2,
        show: !shown.hidden.has(s.name),
        points: { show: (u: uPlot) => (u.data[0]?.length ?? 0) < u.width * POINTS, size: 5 },
      })),
      ...splitLines(plot).near.map((l) => ({
        stroke: colour("--plot-line"),
        width: 1.5,
        dash: [6, 5],
        show: !shown.hidden.has(l.name),
        points: { show: false },
      })),
    ],
    hooks: {
      ...hooks,
      draw: [...(hooks.draw ?? []), (u) => drawMarks(u, plot, shown, colour, font)],
    },
  };
}

/** Leave out ticks beyond the scale: their texts would be clipped. */
const inside = (u: uPlot, splits: number[]): (number | null)[] =>
  splits.map((v) => (v >= (u.scales.x?.min ?? v) && v <= (u.scales.x?.max ?? v) ? v : null));

/** Return the largest size of the numbers on an axis. */
function reach(u: uPlot, key: string): number {
  const scale = u.scales[key];
  return Math.max(Math.abs(scale?.min ?? 0), Math.abs(scale?.max ?? 0));
}

function xAxis(plot: PlotData, shown: Shown): uPlot.Axis {
  const { x } = plot;
  if (x.time && !shown.since) {
    return {
      space: 72,
      values: (_u, splits, _a, _s, step) => timeTicks(splits, step),
      label: (u) => timeLabel(u.scales.x?.min ?? 0, u.scales.x?.max ?? 0),
    };
  }
  const unit = (u: uPlot): Scaled =>
    x.time ? sinceScale(reach(u, "x")) : scaled(reach(u, "x"), x.unit);
  return {
    space: 52,
    ...(x.time ? { incrs: (u: uPlot) => sinceSteps(unit(u)) } : byteSteps(x.unit)),
    values: (u, splits, _a, _s, step) => ticks(splits, step, unit(u)),
    label: (u) => axisLabel(x.time ? "Time since start" : x.name, unit(u).unit),
  };
}

function yAxis(plot: PlotData, shown: Shown): uPlot.Axis {
  const { y } = plot;
  if (shown.log) {
    return {
      space: 26,
      values: (_u, splits) => splits.map((v) => (v === null ? "" : logTick(v, y.unit))),
      label: axisLabel(y.name, takesPrefix(y.unit) ? "" : y.unit),
    };
  }
  const unit = (u: uPlot): Scaled => scaled(reach(u, "y"), y.unit);
  return {
    space: 34,
    ...byteSteps(y.unit),
    values: (u, splits, _a, _s, step) => ticks(splits, step, unit(u)),
    label: (u) => axisLabel(y.name, unit(u).unit),
  };
}

/** Steps of an axis of bytes are powers of 2, so that its ticks are round. */
const byteSteps = (unit: string): { incrs?: number[] } =>
  isBytes(unit) ? { incrs: Array.from({ length: 62 }, (_, n) => 2 ** n) } : {};

/** Draw a line with a text for each mark, inside of the picture. */
function drawMarks(
  u: uPlot,
  plot: PlotData,
  shown: Shown,
  colour: (name: string) => string,
  font: string,
): void {
  const start = shown.since && plot.x.time ? (plot.x.start ?? 0) : 0;
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = colour("--plot-line");
  ctx.setLineDash([]);
  ctx.lineWidth = 2 * devicePixelRatio;
  ctx.font = font.replace(`${FONT_PX}px`, `600 ${FONT_PX * devicePixelRatio}px`);
  ctx.textBaseline = "top";
  for (const mark of plot.marks ?? []) {
    const at = u.valToPos(mark.at - start, "x", true);
    if (at < bbox.left || at > bbox.left + bbox.width + 1) continue;
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    const isRight = at > bbox.left + bbox.width / 2;
    ctx.textAlign = isRight ? "right" : "left";
    const gap = 6 * devicePixelRatio;
    const width = ctx.measureText(mark.text).width + gap * 2;
    const top = bbox.top + bbox.height - (FONT_PX + 10) * devicePixelRatio;
    ctx.fillStyle = colour("--card");
    ctx.fillRect(
      isRight ? at - width : at + 2,
      top - 2,
      width - 2,
      (FONT_PX + 6) * devicePixelRatio,
    );
    ctx.fillStyle = colour("--plot-line");
    ctx.fillText(mark.text, at + (isRight ? -gap : gap), top);
  }
  ctx.restore();
}
