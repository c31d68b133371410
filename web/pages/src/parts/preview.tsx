/** The content of a file: text, a picture, or a table with a plot. SVG and HTML are shown as text. */

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, refusal, unreadable } from "../api.ts";
import { filePath } from "../site.ts";
import { bytes as size } from "../text/format.ts";
import {
  type Table as Csv,
  imageType,
  isTable,
  kindOf,
  likelyAxis,
  MOST_COLUMNS,
  numericColumns,
  table,
  tablePlot,
} from "../text/preview.ts";
import { Icon } from "./icons.tsx";
import { ErrorMessage, Loading } from "./messages.tsx";
import { Plot } from "./plot.tsx";
import { Table } from "./table.tsx";

const FIRST = 65_536;
const MORE = 262_144;
/** Larger pictures are not loaded, and more text is not shown. */
const MOST_IMAGE = 32 * 2 ** 20;
const MOST_TEXT = 4 * 2 ** 20;
const TABLE_BYTES = 2 ** 20;
const TABLE_ROWS = 5000;
const SHOWN_ROWS = 200;

interface Part {
  content: Uint8Array<ArrayBuffer>;
  whole: number;
}

/** Return bytes of a file. Raises ApiError. */
async function read(jid: string, name: string, from: number, count: number): Promise<Part> {
  const range = `bytes=${from}-${from + count - 1}`;
  let response: Response;
  try {
    response = await fetch(filePath(jid, name), {
      headers: { Range: range },
      // the cache of a browser would ask for the range that it has of an earlier file
      cache: "no-store",
    });
  } catch {
    throw new ApiError("unreachable", "the site does not answer", "try again", 0, false);
  }
  // a file without bytes has no range
  if (response.status === 416) return { content: new Uint8Array(), whole: from };
  if (!response.ok) throw await refusal(response);
  const content = new Uint8Array(await response.arrayBuffer());
  const whole = Number(response.headers.get("Content-Range")?.split("/")[1] ?? content.length);
  return { content, whole };
}

function joined(first: Uint8Array, second: Uint8Array): Uint8Array<ArrayBuffer> {
  const out = new Uint8Array(first.length + second.length);
  out.set(first);
  out.set(second, first.length);
  return out;
}

const leaf = (name: string): string => name.slice(name.lastIndexOf("/") + 1);

export function Preview(props: {
  jid: string;
  name: string;
  changed: string;
  close: string;
}): JSX.Element {
  const { jid, name } = props;
  const [part, setPart] = useState<Part>();
  const [error, setError] = useState<ApiError>();
  const load = (from: number, count: number): void => {
    void read(jid, name, from, count).then(
      (next) => {
        setError(undefined);
        setPart((last) =>
          from && last ? { ...next, content: joined(last.content, next.content) } : next,
        );
      },
      (thrown) => setError(thrown instanceof ApiError ? thrown : unreadable()),
    );
  };
  // a changed file is read again
  useEffect(() => load(0, isTable(name) ? TABLE_BYTES : FIRST), [jid, name, props.changed]);
  return (
    <section class="preview" aria-label={`Preview of ${name}`}>
      <div class="preview-head">
        <h2>{name}</h2>
        {part && <span class="soft number">{size(part.whole)}</span>}
        <a class="button" href={filePath(jid, name)} download target="_self">
          <Icon name="download" />
          Download
        </a>
        <a class="icon-link" href={props.close} aria-label="Close the preview" title="Close">
          <Icon name="close" />
        </a>
      </div>
      {error ? (
        <ErrorMessage error={error} again={() => load(0, FIRST)} />
      ) : part ? (
        <Content {...props} part={part} more={() => load(part.content.length, MORE)} />
      ) : (
        <Loading what="the file" />
      )}
    </section>
  );
}

function Content(props: { jid: string; name: string; part: Part; more: () => void }): JSX.Element {
  const { content, whole } = props.part;
  const kind = useMemo(() => kindOf(content.subarray(0, FIRST)), [content]);
  if (content.length === 0) return <p class="soft">The file is empty.</p>;
  if (kind === "image") return <Image {...props} />;
  if (kind === "binary")
    return <p class="soft">This file is no text and no picture. Download it to open it.</p>;
  const text = new TextDecoder().decode(content, { stream: content.length < whole });
  if (isTable(props.name))
    return <TableView name={props.name} text={text} cut={content.length < whole} />;
  return <Text {...props} text={text} />;
}

function Text(props: { text: string; part: Part; more: () => void }): JSX.Element {
  const { content, whole } = props.part;
  const left = whole - content.length;
  return (
    <>
      <section class="code" tabIndex={0} aria-label="Text">
        <pre>{props.text}</pre>
      </section>
      {left > 0 && (
        <div class="buttons">
          {content.length < MOST_TEXT ? (
            <button type="button" onClick={props.more}>
              More ({size(left)} left)
            </button>
          ) : (
            <p class="soft">{size(left)} more. Download the file to read them.</p>
          )}
        </div>
      )}
    </>
  );
}

function Image({ jid, name, part }: { jid: string; name: string; part: Part }): JSX.Element {
  const [address, setAddress] = useState("");
  const [broken, setBroken] = useState(false);
  const large = part.whole > MOST_IMAGE;
  useEffect(() => {
    if (large) return;
    let made = "";
    let closed = false;
    const show = (content: Uint8Array<ArrayBuffer>): void => {
      if (closed) return;
      made = URL.createObjectURL(new Blob([content], { type: imageType(content) ?? "" }));
      setAddress(made);
    };
    if (part.content.length >= part.whole) show(part.content);
    else
      read(jid, name, 0, part.whole).then(
        (all) => show(all.content),
        () => setBroken(true),
      );
    return () => {
      closed = true;
      if (made) URL.revokeObjectURL(made);
    };
  }, [jid, name, part, large]);
  if (large) return <p class="soft">This picture is too large to be shown here.</p>;
  if (broken) return <p class="soft">This picture cannot be shown.</p>;
  if (!address) return <Loading what="the picture" />;
  return <img src={address} alt={`Content of ${name}`} onError={() => setBroken(true)} />;
}

function TableView(props: { name: string; text: string; cut: boolean }): JSX.Element {
  const { name, text, cut } = props;
  const found = useMemo(() => table(text, cut, TABLE_ROWS), [text, cut]);
  const numeric = useMemo(() => numericColumns(found), [found]);
  const [shown, setShown] = useState<"plot" | "table">(numeric.length ? "plot" : "table");
  const [chosen, setChosen] = useState<number>();
  const x = chosen ?? likelyAxis(found);
  const plot = useMemo(() => tablePlot(found, x, leaf(name)), [found, x, name]);
  const isWhole = !cut && found.rows.length < TABLE_ROWS;
  return (
    <>
      {numeric.length > 0 && (
        <div class="buttons">
          <label>
            <span class="hidden">Shown as</span>
            <select
              value={shown}
              onChange={(e) => setShown(e.currentTarget.value === "plot" ? "plot" : "table")}
            >
              <option value="plot">Plot</option>
              <option value="table">Table</option>
            </select>
          </label>
          {shown === "plot" && (
            <label>
              <span class="hidden">Horizontal axis</span>
              <select value={String(x)} onChange={(e) => setChosen(Number(e.currentTarget.value))}>
                <option value="-1">Over rows</option>
                {numeric.map((n) => (
                  <option value={String(n)} key={n}>
                    Over {found.head[n]}
                  </option>
                ))}
              </select>
            </label>
          )}
        </div>
      )}
      {shown === "plot" && numeric.length > 0 ? (
        plot ? (
          <Plot plot={plot} />
        ) : (
          <p class="plot-empty">No other column has numbers.</p>
        )
      ) : (
        <Rows found={found} name={name} />
      )}
      <p class="soft">
        {found.rows.length.toLocaleString()} rows{isWhole ? "" : ", the first of the file"}.
        {found.head.length === MOST_COLUMNS && ` At most ${MOST_COLUMNS} columns are shown.`}
      </p>
    </>
  );
}

function Rows({ found, name }: { found: Csv; name: string }): JSX.Element {
  return (
    <>
      <Table label={`Rows of ${name}`} heads={found.head}>
        {found.rows.slice(0, SHOWN_ROWS).map((row, n) => (
          <tr key={n}>
            {found.head.map((_, m) => (
              <td class="number" key={m}>
                {row[m]}
              </td>
            ))}
          </tr>
        ))}
      </Table>
      {found.rows.length > SHOWN_ROWS && <p class="soft">The first {SHOWN_ROWS} rows are shown.</p>}
    </>
  );
}
