/** A heatmap or points on a canvas, with the values under the pointer. */

import type { JSX, RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Colours } from "./axes.ts";
import { described, draw, type Picture } from "./draw.ts";
import type { Range } from "./ticks.ts";

const PLOTS = 6;

/** Return the colours of the page as it is shown now, light or dark. */
export function pageColours(): Colours {
  const style = getComputedStyle(document.documentElement);
  const named = (name: string): string => style.getPropertyValue(name).trim();
  return {
    ink: named("--ink"),
    soft: named("--soft"),
    edge: named("--edge"),
    card: named("--card"),
    plots: Array.from({ length: PLOTS }, (_, n) => named(`--plot-${n + 1}`)),
  };
}

/** Call it when the page becomes light or dark. */
export function useScheme(): boolean {
  const [isDark, setDark] = useState(matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const change = (): void => setDark(query.matches);
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, []);
  return isDark;
}

export function PictureCanvas(props: {
  data: Picture;
  report: string;
  map: string;
  range: Range | null;
  canvas: RefObject<HTMLCanvasElement | null>;
}): JSX.Element {
  const { data, report, map, range, canvas } = props;
  const under = useRef<(x: number, y: number) => string>(() => "");
  const [readout, setReadout] = useState("");
  const isDark = useScheme();
  const [low, high] = range ?? [];
  useLayoutEffect(() => {
    const element = canvas.current;
    if (!element) return;
    let width = -1;
    const redraw = (): void => {
      width = element.clientWidth;
      if (width) under.current = draw(element, data, { map, range, colours: pageColours() });
    };
    redraw();
    const observer = new ResizeObserver(() => element.clientWidth !== width && redraw());
    observer.observe(element);
    return () => observer.disconnect();
  }, [data, map, low, high, isDark]);
  return (
    <figure class="picture">
      <canvas
        ref={canvas}
        role="img"
        aria-label={described(data)}
        data-report={report}
        data-frame={data.frameIndex}
        onPointerMove={(e) => setReadout(under.current(e.offsetX, e.offsetY))}
        onPointerLeave={() => setReadout("")}
      />
      <figcaption class="soft number">{readout || " "}</figcaption>
    </figure>
  );
}
