/** A picture of a run, with its colours and exports. */

import type { JSX } from "preact";
import { useRef } from "preact/hooks";
import type { Report } from "../apps.ts";
import { PictureCanvas } from "../picture/canvas.tsx";
import { MAPS } from "../picture/colours.ts";
import { kindOf, type Picture } from "../picture/draw.ts";
import type { Range } from "../picture/ticks.ts";
import { pictureCsv, plotOf } from "../text/curves.ts";
import { Plot, save } from "./plot.tsx";

export interface Look {
  map: string;
  /** The colours fit the frame, not all frames. */
  fit: boolean;
}

export type OnLook = (look: Look) => void;

const REMEMBERED = "jobscribe.colours";

export function rememberedLook(): Look {
  let map = "";
  try {
    map = localStorage.getItem(REMEMBERED) ?? "";
  } catch {
    // the browser keeps nothing for this site
  }
  return { map: MAPS.includes(map) ? map : "viridis", fit: false };
}

function chooseMap(look: Look, map: string, onLook: OnLook): void {
  try {
    localStorage.setItem(REMEMBERED, map);
  } catch {
    // the browser keeps nothing for this site
  }
  onLook({ ...look, map });
}

export function ReportCard(props: {
  report: Report;
  data: Picture | undefined;
  fault: string;
  look: Look;
  onLook: OnLook;
  range: Range | null;
}): JSX.Element {
  const { report, data, fault } = props;
  const kind = kindOf(data);
  return (
    <div class="card report" data-report={report.name} data-kind={kind ?? report.picture}>
      {data && kind === "curves" && (
        <Plot plot={{ ...plotOf(data, report.title), title: report.title }} />
      )}
      {data && kind !== "curves" && kind !== null && <Drawing {...props} data={data} />}
      {(!data || kind === null) && (
        <>
          <h3>{report.title}</h3>
          <p class="plot-empty" role="status">
            {fault || (data ? "There is nothing to draw." : "Loading …")}
          </p>
        </>
      )}
      {data && fault && (
        <p class="soft note" role="status">
          {fault}
        </p>
      )}
    </div>
  );
}

function Drawing(props: {
  report: Report;
  data: Picture;
  look: Look;
  onLook: OnLook;
  range: Range | null;
}): JSX.Element {
  const { report, data, look, range, onLook } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const title = report.title;
  return (
    <>
      <div class="plot-head">
        <h3>{title}</h3>
        <fieldset class="plot-tools" aria-label={`Tools of the picture ${title}`}>
          <label>
            <span class="hidden">Colours</span>
            <select
              value={look.map}
              onChange={(e) => chooseMap(look, e.currentTarget.value, onLook)}
            >
              {MAPS.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
          {data.frameIndex !== undefined && (
            <button
              type="button"
              aria-pressed={look.fit}
              title="Fit the colours to this frame"
              onClick={() => onLook({ ...look, fit: !look.fit })}
            >
              Fit colours
            </button>
          )}
          <button type="button" onClick={() => savePng(canvas.current, title)}>
            PNG
          </button>
          <button
            type="button"
            onClick={() => save(new Blob([pictureCsv(data)], { type: "text/csv" }), title, "csv")}
          >
            CSV
          </button>
        </fieldset>
      </div>
      <PictureCanvas
        data={data}
        report={report.name}
        map={look.map}
        range={range}
        canvas={canvas}
      />
    </>
  );
}

/** Save what is drawn, on the colour of the card. */
function savePng(drawn: HTMLCanvasElement | null, title: string): void {
  if (!drawn) return;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [drawn.width, drawn.height];
  const context = canvas.getContext("2d");
  if (!context) return;
  context.fillStyle = getComputedStyle(drawn).getPropertyValue("--card").trim();
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(drawn, 0, 0);
  canvas.toBlob((blob) => blob && save(blob, title, "png"));
}
