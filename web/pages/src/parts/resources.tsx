/** Resource usage of a job: what its tasks use now, and their totals and peaks. */

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { data } from "../api.ts";
import { useRemote } from "../remote.ts";
import { type Amount, type MetricsReply, measures } from "../text/measures.ts";
import { ErrorMessage, Loading } from "./messages.tsx";
import { Scroll } from "./scroll.tsx";

/** Samples of usage are no events, so the stream does not name them. */
const ASK_MS = 5000;

export function Resources({ jid, active }: { jid: string; active: boolean }): JSX.Element {
  const usage = useRemote<MetricsReply>(`usage ${jid} ${active}`, (signal) =>
    data("job-metrics", { computeJid: jid }, signal),
  );
  const { reload } = usage;
  useEffect(() => {
    if (!active) return;
    const timer = setInterval(reload, ASK_MS);
    return () => clearInterval(timer);
  }, [active, reload]);
  if (usage.error) return <ErrorMessage error={usage.error} again={usage.reload} />;
  if (!usage.data) return <Loading what="the usage" />;
  const found = measures(usage.data);
  if (found.length === 0) return <p class="pad soft">No usage is known.</p>;
  return (
    <Scroll label="Usage">
      <table class="flat">
        <caption class="hidden">Resource usage of all tasks of the latest attempt</caption>
        <thead>
          <tr>
            <th scope="col">Resource</th>
            <th scope="col">Now, all tasks</th>
            <th scope="col">Total, all tasks</th>
            <th scope="col">Largest task</th>
          </tr>
        </thead>
        <tbody>
          {found.map((m) => (
            <tr key={m.name}>
              <th scope="row">{m.name}</th>
              <Cell amount={m.now} />
              <Cell amount={m.total} />
              <Cell amount={m.largest} />
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function Cell({ amount }: { amount: Amount | undefined }): JSX.Element {
  return (
    <td class="number">
      {amount?.text ?? "–"}
      {amount?.note && <span class="soft"> {amount.note}</span>}
    </td>
  );
}
