/** The results of a run: a picture for each report, and the player of its frames. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { AppStatus, Model, Report } from "../apps.ts";
import { FrameLoader, type FramesOf } from "../frames.ts";
import { kindOf, type Picture, valueRange } from "../picture/draw.ts";
import type { Range } from "../picture/ticks.ts";
import { Player } from "./player.tsx";
import { type Look, type OnLook, ReportCard, rememberedLook } from "./report_card.tsx";

/** The result of a sequential model. */
export function Result({ status, model }: { status: AppStatus; model: Model }): JSX.Element | null {
  const picture = status as unknown as Picture;
  const [look, setLook] = useState<Look>(rememberedLook);
  if (!kindOf(picture)) return null;
  const report = model.reports[0] ?? { name: model.name, title: model.title, picture: "curves" };
  return (
    <section class="reports" aria-label="Results">
      <h2 class="hidden">Results</h2>
      <ReportCard
        report={report}
        data={picture}
        fault=""
        look={look}
        onLook={setLook}
        range={rangeIn(picture)}
      />
    </section>
  );
}

interface Shown {
  index: number;
  picture: Picture | undefined;
  fault: string;
}

/** The frames of a run. `frame`: the wanted one, -1 for the newest. */
export function Frames(props: {
  run: FramesOf;
  model: Model;
  count: number;
  frame: number;
  onGo: (frame: number) => void;
}): JSX.Element | null {
  const { run, model, count } = props;
  const [playing, setPlaying] = useState(-1);
  const wanted = playing >= 0 ? playing : props.frame;
  const frame = wanted < 0 ? count - 1 : Math.min(wanted, count - 1);
  const shown = useRef(new Map<string, number>());
  const [look, setLook] = useState<Look>(rememberedLook);
  const reports = reportsOf(model);
  if (count <= 0) return null;
  return (
    <>
      <section class="reports" aria-label="Results">
        <h2 class="hidden">Results</h2>
        {reports.map((report) => (
          <FramedReport
            key={report.name}
            run={run}
            report={report}
            frame={frame}
            look={look}
            onLook={setLook}
            onShown={(index) => shown.current.set(report.name, index)}
          />
        ))}
      </section>
      <div class="card player-bar">
        <Player
          count={count}
          frame={frame}
          following={wanted < 0}
          isShown={() => reports.every((r) => shown.current.get(r.name) === frame)}
          onGo={(to, follow, isPlaying) => {
            setPlaying(isPlaying ? to : -1);
            if (!isPlaying) props.onGo(follow ? -1 : to);
          }}
        />
      </div>
    </>
  );
}

/** The place of the pictures, before there is a frame. */
export function NoFrames({ model }: { model: Model }): JSX.Element {
  return (
    <section class="reports" aria-label="Results">
      {reportsOf(model).map(({ name, title }) => (
        <div class="card report" key={name}>
          <h3>{title}</h3>
          <p class="plot-empty">The first frame is not there yet.</p>
        </div>
      ))}
    </section>
  );
}

const reportsOf = (model: Model): Report[] =>
  model.reports.length ? model.reports : [asReport(model)];

const asReport = (model: Model): Report => ({
  name: model.name,
  title: model.title,
  picture: "curves",
});

function FramedReport(props: {
  run: FramesOf;
  report: Report;
  frame: number;
  look: Look;
  onLook: OnLook;
  onShown: (index: number) => void;
}): JSX.Element {
  const { run, report, frame, look } = props;
  const [shown, setShown] = useState<Shown>({ index: -1, picture: undefined, fault: "" });
  const loader = useRef<FrameLoader | undefined>(undefined);
  const onShown = useRef(props.onShown);
  onShown.current = props.onShown;
  const seen = useRef<Range | null>(null);
  useEffect(() => {
    const current = new FrameLoader(
      run,
      report.name,
      (index, picture) => {
        seen.current = joined(seen.current, rangeIn(picture));
        setShown({ index, picture: { ...picture, frameIndex: index }, fault: "" });
        onShown.current(index);
      },
      (fault) => setShown((s) => ({ ...s, fault })),
    );
    loader.current = current;
    return () => current.close();
  }, [run.hash, run.serial, run.simulationId, report.name]);
  useEffect(() => loader.current?.want(frame), [frame, run.hash, run.serial]);
  const { picture } = shown;
  const range = picture && (look.fit ? valueRange(picture) : colourRange(picture, seen.current));
  return (
    <ReportCard
      report={report}
      data={picture}
      fault={shown.fault}
      look={look}
      onLook={props.onLook}
      range={range ?? null}
    />
  );
}

/** A colour means the same in all frames: as the app says, or over all frames that were seen. */
const colourRange = (picture: Picture, seen: Range | null): Range | null =>
  givenRange(picture) ?? seen;

function givenRange({ zRange }: Picture): Range | null {
  const [low, high] = Array.isArray(zRange) ? zRange : [];
  return low !== undefined && high !== undefined ? [low, high] : null;
}

const rangeIn = (picture: Picture): Range | null => givenRange(picture) ?? valueRange(picture);

const joined = (one: Range | null, two: Range | null): Range | null =>
  one && two ? [Math.min(one[0], two[0]), Math.max(one[1], two[1])] : (one ?? two);
