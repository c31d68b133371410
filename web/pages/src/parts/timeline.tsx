/** The timeline of a job: its phases as bars over time, and the causes of its gaps. Each bar is in a
 * table, whose cells say the same as text. */

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { data } from "../api.ts";
import { now } from "../clock.ts";
import { useRemote } from "../remote.ts";
import { duration, moment, sentence } from "../text/format.ts";
import { type Span, spans, type TraceReply } from "../text/timeline.ts";
import { ErrorMessage, Loading } from "./messages.tsx";
import { Table } from "./table.tsx";

export function Timeline({
  jid,
  position,
  reason,
}: {
  jid: string;
  position: number | undefined;
  /** Why a job waits now. */
  reason: string | undefined;
}): JSX.Element {
  const trace = useRemote<TraceReply>(`timeline ${jid}`, (signal) =>
    data("trace", { id: jid }, signal),
  );
  const { reload } = trace;
  useEffect(reload, [position, reload]);
  if (trace.error) return <ErrorMessage error={trace.error} again={trace.reload} />;
  if (!trace.data) return <Loading what="the timeline" />;
  const found = spans(trace.data, now.value);
  if (found.length === 0) return <p class="pad soft">Nothing has happened yet.</p>;
  return (
    <Table
      label="Phases of the job, and the causes of its gaps"
      class="flat timeline"
      heads={["From", "Phase", "Duration", "On the time axis"]}
    >
      {found.map((span) => (
        <SpanRow span={span} reason={reason} key={`${span.since} ${span.name} ${span.gap}`} />
      ))}
    </Table>
  );
}

function SpanRow({ span, reason }: { span: Span; reason: string | undefined }): JSX.Element {
  return (
    <tr data-gap={span.gap}>
      <td class="number">{moment(span.since)}</td>
      <td>
        {span.gap ? sentence(span.name) : span.name}
        {span.open && reason && <p class="span-reason soft">{sentence(reason)}</p>}
      </td>
      <td class="number">
        {duration(span.secs)}
        {span.open && " so far"}
      </td>
      <td class="axis">
        <div
          class="span"
          style={{ marginLeft: `${span.left * 100}%`, width: `${span.width * 100}%` }}
          title={`${span.name}: ${duration(span.secs)}`}
        />
      </td>
    </tr>
  );
}
