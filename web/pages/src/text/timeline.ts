/** Rows of the timeline of a job. Pure. */

export interface TraceReply {
  phases: { name: string; component: string; track: string; since: number; until: number | null }[];
  waits: { since: number; until: number; secs: number; text: string; known: boolean }[];
}

export interface Span {
  name: string;
  since: number;
  secs: number;
  /** It has not ended. */
  open: boolean;
  /** A gap between two events, with its cause as name. */
  gap: boolean;
  /** Place on the axis, as shares of the whole time. */
  left: number;
  width: number;
}

/** Return phases and gaps in the order of their begin. */
export function spans(trace: TraceReply, now: number): Span[] {
  const rows = [
    ...trace.phases.map((p) => ({
      ...p,
      until: p.until ?? now,
      open: p.until === null,
      gap: false,
    })),
    ...trace.waits.map((w) => ({ ...w, name: withoutSeconds(w.text), open: false, gap: true })),
  ].sort(
    // a phase without duration precedes what begins at its end; a longer phase precedes its gaps
    (a, b) =>
      a.since - b.since ||
      Number(a.until > a.since) - Number(b.until > b.since) ||
      b.until - a.until,
  );
  const begin = Math.min(...rows.map((r) => r.since));
  const whole = Math.max(...rows.map((r) => r.until)) - begin || 1;
  return rows.map(({ name, since, until, open, gap }) => ({
    name,
    since,
    secs: Math.max(0, until - since),
    open,
    gap,
    left: (since - begin) / whole,
    width: Math.max(0, until - since) / whole,
  }));
}

/** Remove the duration with which the text of a gap begins: it has a column of its own. */
const withoutSeconds = (text: string): string => text.replace(/^[\d.]+ s /, "");
