/** Icons of 16 px, drawn in the colour of the text. A word beside each says the same. */

import type { JSX } from "preact";

const SHAPES: Record<string, JSX.Element> = {
  pending: <path d="M8 4.5V8l2.3 1.6M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0Z" />,
  running: <path d="M14 8a6 6 0 1 1-6-6M6.8 5.6v4.8L10.4 8Z" />,
  completed: <path d="M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0ZM5.4 8.2l1.9 1.9 3.4-3.9" />,
  error: <path d="M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0ZM8 4.8v3.7M8 11v.2" />,
  canceled: <path d="M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0ZM3.9 3.9l8.2 8.2" />,
  job_run_purged: <path d="M2.5 4.5h11M6 4.5v-2h4v2M4 4.5l.6 9h6.8l.6-9" />,
  missing: (
    <path d="M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0ZM6.3 6.4a1.8 1.8 0 1 1 2.3 1.9c-.5.2-.6.5-.6 1M8 11.3v.1" />
  ),
  search: <path d="M10.2 10.2 14 14M11.5 7a4.5 4.5 0 1 1-9 0 4.5 4.5 0 0 1 9 0Z" />,
  up: <path d="M8 12.5v-9M4.5 7 8 3.5 11.5 7" />,
  down: <path d="M8 3.5v9M4.5 9 8 12.5 11.5 9" />,
  close: <path d="m4 4 8 8M12 4l-8 8" />,
  copy: <path d="M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8Z" />,
  play: <path d="M5 3.2v9.6L13 8Z" />,
  pause: <path d="M5.5 3.5v9M10.5 3.5v9" />,
  next: <path d="m6 3.5 4.5 4.5L6 12.5" />,
  previous: <path d="M10 3.5 5.5 8l4.5 4.5" />,
  edit: <path d="M3 13l.6-2.8L10.8 3l2.2 2.2-7.2 7.2L3 13Z" />,
  add: <path d="M8 3v10M3 8h10" />,
  download: <path d="M8 2.5v8M4.5 7 8 10.5 11.5 7M2.5 13.5h11" />,
};

export function Icon({ name }: { name: string }): JSX.Element {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      {SHAPES[name] ?? SHAPES.missing}
    </svg>
  );
}
