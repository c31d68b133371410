/**
 * A plot of several series over one x axis: zoom, logarithmic scale, values at the cursor, export,
 * and the same values as a table. The library is loaded when the first plot is shown.
 */

import "./plot.css";
import type { JSX, RefObject } from "preact";
import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import {
  amount,
  csv,
  fileName,
  hasValues,
  type PlotData,
  rows,
  singleWidth,
  splitLines,
  widened,
  xText,
} from "../text/plot_data.ts";
import { loaded } from "./late.tsx";
import { colourOf, columns, options, type Shown } from "./plot_options.ts";
import { Table } from "./table.tsx";

/** Rows of the table; the CSV file has all. */
const TABLE_ROWS = 200;
const ZOOM = 0.6;

export interface PlotProps {
  plot: PlotData;
  /** Instead of the plot, if there are no values. */
  empty?: string;
  /** Times since the start. If it is set, the plot has no control of its own for it. */
  since?: boolean;
  /** Plots with the same name have one cursor. */
  sync?: string;
}

export function Plot(props: PlotProps): JSX.Element {
  const { plot } = props;
  if (!hasValues(plot)) {
    return (
      <section class="plot" aria-label={plot.title}>
        <div class="plot-head">
          <strong class="plot-title">{plot.title}</strong>
        </div>
        <p class="plot-empty">{props.empty ?? "There are no values yet."}</p>
      </section>
    );
  }
  return <Drawn {...props} />;
}

function Drawn({ plot, since: given, sync }: PlotProps): JSX.Element {
  const [log, setLog] = useState(false);
  const [own, setOwn] = useState(false);
  const [hidden, setHidden] = useState<ReadonlySet<string>>(new Set());
  const since = (given ?? own) && plot.x.start !== undefined;
  const shown = useMemo<Shown>(() => ({ log, since, hidden }), [log, since, hidden]);
  const chart = useChart(plot, shown, sync);
  const hint = useId();
  const toggle = (name: string): void => {
    const next = new Set(hidden);
    if (!next.delete(name)) next.add(name);
    setHidden(next);
  };
  return (
    <section class="plot" aria-label={plot.title}>
      <div class="plot-head">
        <strong class="plot-title">{plot.title}</strong>
        <fieldset class="plot-tools" aria-label={`Tools of the plot ${plot.title}`}>
          {given === undefined && plot.x.time && plot.x.start !== undefined && (
            <button type="button" aria-pressed={own} onClick={() => setOwn(!own)}>
              Since start
            </button>
          )}
          <button type="button" aria-pressed={log} onClick={() => setLog(!log)}>
            Log scale
          </button>
          <button type="button" aria-label="Zoom in" onClick={() => chart.zoom(ZOOM)}>
            +
          </button>
          <button
            type="button"
            aria-label="Zoom out"
            disabled={!chart.zoomed}
            onClick={() => chart.zoom(1 / ZOOM)}
          >
            −
          </button>
          <button type="button" disabled={!chart.zoomed} onClick={chart.reset}>
            Reset zoom
          </button>
          <button type="button" onClick={() => chart.picture(plot, shown)}>
            PNG
          </button>
          <button
            type="button"
            onClick={() => save(new Blob([csv(plot)], { type: "text/csv" }), plot.title, "csv")}
          >
            CSV
          </button>
        </fieldset>
      </div>
      <div
        class="plot-canvas"
        ref={chart.element}
        tabIndex={0}
        role="img"
        aria-label={about(plot)}
        aria-describedby={hint}
        onKeyDown={chart.onKeyDown}
      />
      <p class="hidden" id={hint}>
        Arrow keys move the cursor, plus and minus zoom, Escape shows everything. A table with the
        values follows.
      </p>
      <p class="hidden" role="status">
        {chart.byKey && chart.at !== null && spoken(plot, chart.at, since)}
      </p>
      <Legend plot={plot} hidden={hidden} at={chart.at} since={since} onToggle={toggle} />
      <Values plot={plot} since={since} />
    </section>
  );
}

const about = (plot: PlotData): string =>
  `Plot of ${plot.series.map((s) => s.name).join(", ")} over ${plot.x.time ? "time" : plot.x.name}, ${plot.x.values.length} points`;

const spoken = (plot: PlotData, at: number, since: boolean): string =>
  [
    xText(plot, plot.x.values[at] ?? 0, since),
    ...plot.series.map((s) => `${s.name} ${valueText(s.values[at], plot.y.unit)}`),
  ].join(", ");

const valueText = (value: number | null | undefined, unit: string): string =>
  value === null || value === undefined ? "–" : amount(value, unit);

function Legend(props: {
  plot: PlotData;
  hidden: ReadonlySet<string>;
  at: number | null;
  since: boolean;
  onToggle: (name: string) => void;
}): JSX.Element {
  const { plot, hidden, at, since } = props;
  const { near, far } = splitLines(plot);
  const entry = (name: string, colour: string, value: string): JSX.Element => (
    <li key={name}>
      <button type="button" aria-pressed={!hidden.has(name)} onClick={() => props.onToggle(name)}>
        <span class="plot-swatch" data-colour={colour} aria-hidden="true" />
        {name}
        {value && <span class="plot-value number">{value}</span>}
      </button>
    </li>
  );
  return (
    <ul class="plot-legend" aria-label={`Legend of the plot ${plot.title}`}>
      {plot.series.map((s, n) =>
        entry(s.name, String(colourOf(n)), at === null ? "" : valueText(s.values[at], plot.y.unit)),
      )}
      {near.map((l) => entry(l.name, "line", amount(l.value, plot.y.unit)))}
      {far.map((l) => (
        <li key={l.name} class="soft">
          {l.name} {amount(l.value, plot.y.unit)}, above the plot
        </li>
      ))}
      <li class="at-x number">
        {at === null ? "" : `at ${xText(plot, plot.x.values[at] ?? 0, since)}`}
      </li>
    </ul>
  );
}

function Values({ plot, since }: { plot: PlotData; since: boolean }): JSX.Element {
  const [open, setOpen] = useState(false);
  const left = plot.x.values.length - TABLE_ROWS;
  return (
    <details class="plot-table" onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary>Values as a table</summary>
      {open && (
        <>
          <Table
            label={`Values of the plot ${plot.title}`}
            heads={[
              plot.x.time ? (since ? "Time since start" : "Local time") : plot.x.name,
              ...plot.series.map((s) => s.name),
            ]}
          >
            {rows(plot, TABLE_ROWS, since).map((row, n) => (
              <tr key={plot.x.values[n]}>
                {row.map((text, column) => (
                  <td class="number" key={plot.series[column - 1]?.name ?? ""}>
                    {text}
                  </td>
                ))}
              </tr>
            ))}
          </Table>
          {left > 0 && <p class="pad soft">The CSV file has {left} more rows.</p>}
        </>
      )}
    </details>
  );
}

interface Chart {
  element: RefObject<HTMLDivElement | null>;
  /** The point at the cursor. */
  at: number | null;
  byKey: boolean;
  zoomed: boolean;
  zoom: (factor: number) => void;
  reset: () => void;
  picture: (plot: PlotData, shown: Shown) => void;
  onKeyDown: (event: KeyboardEvent) => void;
}

/** Draw in an element, and again when the data, the options, the size or the colours change. */
function useChart(plot: PlotData, shown: Shown, sync: string | undefined): Chart {
  const element = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | undefined>(undefined);
  const [at, setAt] = useState<number | null>(null);
  const [byKey, setByKey] = useState(false);
  const [zoomed, setZoomed] = useState(false);
  const dark = useDark();
  const latest = useRef({ plot, shown });
  latest.current = { plot, shown };
  const form = JSON.stringify([
    ...[plot.x.name, plot.x.unit, plot.y.name, plot.y.unit, plot.marks, plot.lines, sync, dark],
    ...[plot.series.map((s) => s.name), splitLines(plot).near.length],
    ...[shown.log, shown.since],
  ]);
  // `form` has all that makes another chart
  useEffect(() => {
    const place = element.current;
    if (!place) return;
    let closed = false;
    let resize: ResizeObserver | undefined;
    const draw = (UPlot: typeof import("uplot")): void => {
      if (closed) return;
      const made = new UPlot(
        options(
          latest.current.plot,
          latest.current.shown,
          place,
          {
            setCursor: [(u) => setAt(u.cursor.idx ?? null)],
            setScale: [(u, key) => key === "x" && setZoomed(isZoomed(u))],
          },
          sync,
        ),
        columns(latest.current.plot, latest.current.shown),
        place,
      );
      chart.current = made;
      setZoomed(false);
      resize = new ResizeObserver(() =>
        made.setSize({ width: place.clientWidth, height: place.clientHeight }),
      );
      resize.observe(place);
    };
    void loaded(() => import("uplot").then((m) => m.default)).then(draw, () => {
      place.textContent = "The plot cannot be drawn: a part of this page did not arrive.";
    });
    return () => {
      closed = true;
      resize?.disconnect();
      chart.current?.destroy();
      chart.current = undefined;
    };
  }, [form]);
  useEffect(() => {
    const drawn = chart.current;
    if (!drawn) return;
    const stays = isZoomed(drawn);
    drawn.setData(columns(plot, latest.current.shown), !stays);
    if (stays) drawn.redraw();
  }, [plot]);
  useEffect(() => {
    const drawn = chart.current;
    const names = [...plot.series, ...splitLines(plot).near].map((s) => s.name);
    names.forEach((name, n) => {
      const show = !shown.hidden.has(name);
      if (drawn?.series[n + 1] && drawn.series[n + 1]?.show !== show)
        drawn.setSeries(n + 1, { show });
    });
  }, [shown.hidden, plot]);
  const use = (work: (u: uPlot) => void) => {
    if (chart.current) work(chart.current);
  };
  const reset = (): void => use((u) => u.setScale("x", whole(u)));
  const zoom = (factor: number): void => use((u) => zoomBy(u, factor));
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const u = chart.current;
    if (!u || !onKey(u, event)) return;
    event.preventDefault();
    setByKey(true);
  };
  const picture = (p: PlotData, s: Shown): void => use((u) => savePicture(u, p, s));
  return { element, at, byKey, zoomed, zoom, reset, picture, onKeyDown };
}

function useDark(): boolean {
  const [dark, setDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const look = (): void => setDark(query.matches);
    query.addEventListener("change", look);
    return () => query.removeEventListener("change", look);
  }, []);
  return dark;
}

function whole(u: uPlot): { min: number; max: number } {
  const xs = u.data[0];
  const [min, max] = widened(xs, xs[0] ?? 0, xs[xs.length - 1] ?? 1, singleWidth(u.scales.x));
  return { min, max };
}

function isZoomed(u: uPlot): boolean {
  const { min, max } = whole(u);
  const scale = u.scales.x;
  const near = (max - min) / 1e6;
  return (scale?.min ?? min) > min + near || (scale?.max ?? max) < max - near;
}

/** Zoom around the cursor, or else around the middle. */
function zoomBy(u: uPlot, factor: number): void {
  const { min, max } = whole(u);
  const scale = u.scales.x;
  const [low, high] = [scale?.min ?? min, scale?.max ?? max];
  const { idx } = u.cursor;
  const at = idx === null || idx === undefined ? undefined : u.data[0][idx];
  const middle = at !== undefined && at >= low && at <= high ? at : (low + high) / 2;
  const next = { min: middle - (middle - low) * factor, max: middle + (high - middle) * factor };
  u.setScale("x", { min: Math.max(min, next.min), max: Math.min(max, next.max) });
}

const STEPS: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };

/** Do what a key means. Return whether it means something. */
function onKey(u: uPlot, event: KeyboardEvent): boolean {
  const { key } = event;
  const last = u.data[0].length - 1;
  const at = u.cursor.idx ?? -1;
  if (key === "+" || key === "=") zoomBy(u, ZOOM);
  else if (key === "-") zoomBy(u, 1 / ZOOM);
  else if (key === "0" || key === "Escape") u.setScale("x", whole(u));
  else if (key === "Home") moveTo(u, 0);
  else if (key === "End") moveTo(u, last);
  else if (STEPS[key]) moveTo(u, Math.min(last, Math.max(0, at + STEPS[key])));
  else return false;
  return true;
}

/** Move the cursor to a point, on the line of the first visible series. */
function moveTo(u: uPlot, idx: number): void {
  const visible = u.series.findIndex((s, n) => n > 0 && s.show);
  const value = u.data[Math.max(1, visible)]?.[idx];
  u.setCursor({
    left: u.valToPos(u.data[0][idx] ?? 0, "x"),
    top: value === null || value === undefined ? 0 : u.valToPos(value, "y"),
  });
}

/** Save what is drawn, with title and legend, as a picture. */
function savePicture(u: uPlot, plot: PlotData, shown: Shown): void {
  const drawn = u.ctx.canvas;
  const style = getComputedStyle(u.root);
  const colour = (name: string): string => style.getPropertyValue(name).trim();
  const px = devicePixelRatio;
  const line = 22 * px;
  const legend = [
    ...plot.series.map((s, n) => [s.name, colour(`--plot-${colourOf(n)}`)] as const),
    ...splitLines(plot).near.map(
      (l) => [`${l.name} ${amount(l.value, plot.y.unit)}`, colour("--plot-line")] as const,
    ),
  ].filter(([name]) => !shown.hidden.has(name));
  const canvas = document.createElement("canvas");
  canvas.width = drawn.width;
  canvas.height = drawn.height + line * (2 + legend.length);
  const ctx = canvas.getContext("2d");
  if (!ctx) return;
  ctx.fillStyle = colour("--card");
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.fillStyle = colour("--ink");
  ctx.font = `600 ${15 * px}px ${colour("--font")}`;
  ctx.fillText(plot.title, 10 * px, line);
  ctx.drawImage(drawn, 0, line * 1.5);
  ctx.font = `${13 * px}px ${colour("--font")}`;
  legend.forEach(([name, stroke], n) => {
    const top = drawn.height + line * (2.2 + n);
    ctx.fillStyle = stroke;
    ctx.fillRect(10 * px, top - 5 * px, 16 * px, 3 * px);
    ctx.fillStyle = colour("--ink");
    ctx.fillText(name, 34 * px, top);
  });
  canvas.toBlob((blob) => blob && save(blob, plot.title, "png"));
}

/** Offer a file as a download. */
export function save(blob: Blob, title: string, suffix: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = fileName(title, suffix);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
