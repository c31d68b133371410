/** A recorded profile: a flame graph of buttons, or curves. A table has the functions with the most
 * samples. */

import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, refusal, unreadable } from "../api.ts";
import { filePath } from "../site.ts";
import {
  type Box,
  boxes,
  curves,
  flameTree,
  frameAt,
  hottest,
  type Profile,
} from "../text/flame.ts";
import { bytes, duration, plural } from "../text/format.ts";
import { ErrorMessage, Loading } from "./messages.tsx";
import { Plot } from "./plot.tsx";
import { Table } from "./table.tsx";

const ROW_PX = 20;
const HOTTEST = 20;
const COLOURS = 5;
/** Bytes of a file that are read: a profile has at most so many, another file may have more. */
const MOST = 8 * 2 ** 20;

export function ProfileView({ jid, profile }: { jid: string; profile: Profile }): JSX.Element {
  const [text, setText] = useState<string>();
  const [error, setError] = useState<ApiError>();
  useEffect(() => {
    const read = async (): Promise<string> => {
      const response = await fetch(filePath(jid, profile.name), {
        headers: { Range: `bytes=0-${MOST - 1}` },
        cache: "no-store",
      });
      if (!response.ok) throw await refusal(response);
      return response.text();
    };
    read().then(setText, (e) => setError(e instanceof ApiError ? e : unreadable()));
  }, [jid, profile.name]);
  if (error) return <ErrorMessage error={error} />;
  if (text === undefined) return <Loading what="the profile" />;
  return (
    <>
      {profile.ending === "dat" ? (
        curves(text).map((plot) => <Plot key={plot.title} plot={plot} />)
      ) : (
        <Flame
          text={text}
          title={`${profile.tool} of ${profile.task}, ${profile.program}`}
          amount={profile.tool === "cpu sampler" ? cpuTime : samples}
        />
      )}
      {profile.size > MOST && <p class="soft">Only the first {bytes(MOST)} of it are shown.</p>}
    </>
  );
}

/** Counts of the sampler are microseconds of CPU time. */
const cpuTime = (count: number): string => `${duration(count / 1e6)} of CPU time`;
const samples = (count: number): string => plural(count, "sample");

function Flame(props: {
  text: string;
  title: string;
  amount: (count: number) => string;
}): JSX.Element {
  const { text, title, amount } = props;
  const root = useMemo(() => flameTree(text), [text]);
  const [path, setPath] = useState<string[]>([]);
  const [at, setAt] = useState<Box>();
  const graph = useRef<HTMLDivElement>(null);
  const drawn = useMemo(() => boxes(root, path), [root, path]);
  const hot = useMemo(() => hottest(root, HOTTEST), [root]);
  if (root.total === 0) return <p class="soft">The profile has no sample.</p>;
  const shown = frameAt(root, path);
  const depth = Math.max(...drawn.map((b) => b.depth)) + 1;
  const onKeyDown = (event: KeyboardEvent): void => {
    const here = drawn.findIndex((_, n) => document.activeElement === button(n));
    const next = neighbour(drawn, here, event.key);
    if (next === undefined) return;
    event.preventDefault();
    button(next)?.focus();
  };
  const button = (n: number): HTMLElement | undefined =>
    graph.current?.children[n] as HTMLElement | undefined;
  return (
    <>
      <div class="flame-head">
        <h3>{title}</h3>
        <button type="button" disabled={path.length === 0} onClick={() => setPath([])}>
          Whole profile
        </button>
      </div>
      <div
        class="flame"
        role="toolbar"
        aria-label={`Flame graph of ${title}; arrow keys move, Enter zooms`}
        ref={graph}
        style={{ height: `${Math.min(460, depth * ROW_PX)}px` }}
        onKeyDown={onKeyDown}
      >
        {drawn.map((box, n) => (
          <button
            type="button"
            key={box.path.join(";")}
            tabIndex={n === 0 ? 0 : -1}
            data-colour={colour(box.frame.name)}
            style={{
              left: `${box.left * 100}%`,
              width: `${box.width * 100}%`,
              top: `${box.depth * ROW_PX}px`,
            }}
            aria-label={`${box.frame.name}, ${percent(box.frame.total / root.total)}`}
            onClick={() => setPath(box.path)}
            onFocus={() => setAt(box)}
            onMouseEnter={() => setAt(box)}
          >
            {box.width > 0.02 ? box.frame.name : ""}
          </button>
        ))}
      </div>
      <p class="flame-said soft number" role="status">
        {at ? said(at, root.total, amount) : `${amount(shown.total)}. Choose a frame to zoom.`}
      </p>
      <details>
        <summary class="soft">Functions that take the most</summary>
        <Table
          label="Functions that take the most"
          heads={["Function", "Itself", "With what it calls"]}
        >
          {hot.map(({ name, self, total }) => (
            <tr key={name}>
              <td>{name}</td>
              <td class="number">{percent(self / root.total)}</td>
              <td class="number">{percent(total / root.total)}</td>
            </tr>
          ))}
        </Table>
      </details>
    </>
  );
}

const percent = (share: number): string => `${(share * 100).toFixed(1)} %`;

const said = ({ frame }: Box, all: number, amount: (count: number) => string): string =>
  `${frame.name}: ${percent(frame.total / all)} with what it calls, ${percent(frame.self / all)} itself, ${amount(frame.total)}`;

/** The file of a function chooses its colour. */
function colour(name: string): number {
  const file = /\(([^():]+)/.exec(name)?.[1] ?? name;
  let hash = 7;
  for (const c of file) hash = (hash * 31 + c.charCodeAt(0)) % 100_003;
  return (hash % COLOURS) + 1;
}

/** Return the box to which a key moves: callers are above, callees below. */
function neighbour(drawn: Box[], here: number, key: string): number | undefined {
  const box = drawn[here];
  if (!box) return undefined;
  const middle = box.left + box.width / 2;
  const over = (b: Box): boolean => b.left <= middle && middle <= b.left + b.width;
  const inside = (b: Box): boolean =>
    b.left >= box.left - 1e-9 && b.left < box.left + box.width - 1e-9;
  const row = drawn
    .map((b, n) => ({ b, n }))
    .filter(({ b }) => b.depth === box.depth)
    .sort((x, y) => x.b.left - y.b.left);
  const place = row.findIndex(({ n }) => n === here);
  const found: Record<string, () => number | undefined> = {
    ArrowUp: () => drawn.findIndex((b) => b.depth === box.depth - 1 && over(b)),
    ArrowDown: () => drawn.findIndex((b) => b.depth === box.depth + 1 && inside(b)),
    ArrowRight: () => row[place + 1]?.n,
    ArrowLeft: () => row[place - 1]?.n,
  };
  const next = found[key]?.();
  return next === undefined || next < 0 ? undefined : next;
}
