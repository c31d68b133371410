/** The output of a task: live, with its styles, searched by lines, and as a download. */

import type { JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { downloadPath } from "../site.ts";
import { bytes, plural } from "../text/format.ts";
import { type JobView, taskQuery } from "../text/job_view.ts";
import type { Block, TerminalText } from "../text/terminal.ts";
import { Icon } from "./icons.tsx";

/** Lines of a search that are shown. */
const MOST_FOUND = 2000;
/** Distance from the end, in pixels, at which the log counts as read to its end. */
const NEAR_END = 40;

export interface LogState {
  text: TerminalText;
  /** Bytes of the output before the part that is shown. */
  skipped: number;
  /** The output is complete. */
  ended: boolean;
  /** Output was read at least once. */
  read: boolean;
}

export function Log(props: {
  jid: string;
  view: JobView;
  log: LogState;
  tasks: { role: string; index: number }[];
  attempts: number[];
  onChange: (change: Partial<JobView>) => void;
}): JSX.Element {
  const { jid, view, log } = props;
  const [words, setWords] = useState("");
  const query = new URLSearchParams(taskQuery(view)).toString();
  return (
    <>
      <div class="log-head">
        <LogChoice {...props} />
        <label class="search">
          <Icon name="search" />
          <span class="hidden">Show only lines with</span>
          <input
            type="search"
            placeholder="Only lines with …"
            value={words}
            onInput={(e) => setWords(e.currentTarget.value)}
          />
        </label>
        <a
          class="button"
          href={downloadPath("job-output", jid) + (query ? `?${query}` : "")}
          download={`${jid}-${view.stream}.log`}
          target="_self"
        >
          <Icon name="download" />
          Download
        </a>
      </div>
      {words.trim() ? <Found text={log.text} words={words.trim()} /> : <Output {...props} />}
    </>
  );
}

function LogChoice(props: {
  view: JobView;
  tasks: { role: string; index: number }[];
  attempts: number[];
  onChange: (change: Partial<JobView>) => void;
}): JSX.Element {
  const { view, tasks, attempts, onChange } = props;
  return (
    <>
      <label>
        <span class="hidden">Stream</span>
        <select
          value={view.stream}
          onChange={(e) => onChange({ stream: e.currentTarget.value as JobView["stream"] })}
        >
          <option value="stdout">Output (stdout)</option>
          <option value="stderr">Errors (stderr)</option>
        </select>
      </label>
      {tasks.length > 1 && (
        <label>
          <span class="hidden">Task</span>
          <select
            value={view.role ? `${view.role}/${view.index}` : ""}
            onChange={(e) => {
              const [role = "", index = "0"] = e.currentTarget.value.split("/");
              onChange({ role, index: Number(index) });
            }}
          >
            <option value="">Deciding task</option>
            {tasks.map((t) => (
              <option value={`${t.role}/${t.index}`} key={`${t.role}/${t.index}`}>
                {t.role}/{t.index}
              </option>
            ))}
          </select>
        </label>
      )}
      {attempts.length > 1 && (
        <label>
          <span class="hidden">Attempt</span>
          <select
            value={String(view.attempt)}
            onChange={(e) => onChange({ attempt: Number(e.currentTarget.value) })}
          >
            <option value="0">Latest attempt</option>
            {attempts.map((n) => (
              <option value={String(n)} key={n}>
                Attempt {n}
              </option>
            ))}
          </select>
        </label>
      )}
    </>
  );
}

function Output(props: {
  log: LogState;
  view: JobView;
  onChange: (change: Partial<JobView>) => void;
}): JSX.Element {
  const { log, view, onChange } = props;
  const other = view.stream === "stdout" ? "stderr" : "stdout";
  const box = useRef<HTMLElement>(null);
  const following = useRef(true);
  const blocks = log.text.blocks;
  useLayoutEffect(() => {
    if (following.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [blocks]);
  const onScroll = (): void => {
    const e = box.current;
    if (e) following.current = e.scrollHeight - e.scrollTop - e.clientHeight < NEAR_END;
  };
  const before = log.skipped + log.text.dropped;
  return (
    <>
      <section class="log" ref={box} onScroll={onScroll} tabIndex={0} aria-label="Output">
        {before > 0 && <p class="soft">{bytes(before)} before this are in the download.</p>}
        {blocks.length === 0 && (
          <p class="soft">
            {silence(log)}{" "}
            <button type="button" onClick={() => onChange({ stream: other })}>
              Show {other}
            </button>
          </p>
        )}
        {blocks.map((block) => (
          <BlockText block={block} key={block.id} />
        ))}
      </section>
      <p class="log-foot soft" role="status">
        {log.ended
          ? "End of the output."
          : log.read
            ? "Following the output."
            : "Waiting for output …"}
      </p>
    </>
  );
}

const silence = (log: LogState): string =>
  log.ended ? "This stream has no output." : "No output yet.";

function BlockText({ block }: { block: Block }): JSX.Element {
  return (
    <pre>
      {block.pieces.map(([text, look], n) =>
        look ? (
          <span class={look} key={n}>
            {text}
          </span>
        ) : (
          text
        ),
      )}
    </pre>
  );
}

function Found({ text, words }: { text: TerminalText; words: string }): JSX.Element {
  const lines = text.find(words);
  return (
    <>
      <section class="log" tabIndex={0} aria-label="Lines found">
        <pre>{lines.slice(-MOST_FOUND).join("\n")}</pre>
      </section>
      <p class="log-foot soft" role="status">
        {plural(lines.length, "line")} found in the output that is shown.
      </p>
    </>
  );
}
