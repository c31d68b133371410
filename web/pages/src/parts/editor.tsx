/** A field for a text of many lines: with their numbers, and marks at some. */

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";

/** More lines have no numbers, which would slow down typing. */
const NUMBERED = 20_000;

export interface Place {
  line: number;
  /** Differs for each jump, so that the same line is shown again. */
  jump: number;
}

export function Editor(props: {
  label: string;
  value: string;
  marked: ReadonlySet<number>;
  place: Place | undefined;
  maxLength: number;
  onInput: (value: string) => void;
  onTooLong: (length: number) => void;
}): JSX.Element {
  const area = useRef<HTMLTextAreaElement>(null);
  const numbers = useRef<HTMLPreElement>(null);
  const { place } = props;
  useEffect(() => {
    const field = area.current;
    if (!field || !place) return;
    const [start, end] = lineRange(field.value, place.line);
    field.focus();
    field.setSelectionRange(start, end);
    const height = Number.parseFloat(getComputedStyle(field).lineHeight) || 20;
    field.scrollTop = Math.max(0, (place.line - 4) * height);
  }, [place?.line, place?.jump]);
  const onPaste = (event: ClipboardEvent): void => {
    const length = event.clipboardData?.getData("text/plain").length ?? 0;
    if (length <= props.maxLength) return;
    event.preventDefault();
    props.onTooLong(length);
  };
  return (
    <div class="editor">
      <pre class="line-numbers" aria-hidden="true" ref={numbers}>
        {numbered(props.value, props.marked)}
      </pre>
      <textarea
        ref={area}
        aria-label={props.label}
        wrap="off"
        spellcheck={false}
        autocomplete="off"
        autocapitalize="off"
        value={props.value}
        onInput={(e) => props.onInput(e.currentTarget.value)}
        onPaste={onPaste}
        onScroll={(e) => {
          if (numbers.current) numbers.current.scrollTop = e.currentTarget.scrollTop;
        }}
      />
    </div>
  );
}

/** Return the first and last place of a line, from 1 on. */
export function lineRange(text: string, line: number): [number, number] {
  let start = 0;
  for (let n = 1; n < line; n += 1) {
    const next = text.indexOf("\n", start);
    if (next < 0) break;
    start = next + 1;
  }
  const end = text.indexOf("\n", start);
  return [start, end < 0 ? text.length : end];
}

function numbered(text: string, marked: ReadonlySet<number>): (string | JSX.Element)[] {
  let count = 1;
  for (let at = text.indexOf("\n"); at >= 0 && count < NUMBERED; at = text.indexOf("\n", at + 1)) {
    count += 1;
  }
  const parts: (string | JSX.Element)[] = [];
  let plain = "";
  for (let n = 1; n <= count; n += 1) {
    if (marked.has(n)) {
      parts.push(plain, <b key={n}>{`${n}\n`}</b>);
      plain = "";
    } else plain += `${n}\n`;
  }
  return [...parts, plain];
}
