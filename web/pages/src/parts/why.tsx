/** The cause of a job's state, its evidence, and what to do. */

import type { JSX } from "preact";
import type { Status } from "../jobs.ts";
import { localTimes, sentence } from "../text/format.ts";
import { pieces } from "../text/terminal.ts";

export interface WhyReply {
  state: string;
  cause?: string | null;
  confidence?: string | null;
  sentence?: string;
  evidence?: string[];
  not?: string[];
  try?: string[];
  lastLines?: string | null;
  terminationMessage?: string | null;
}

const plain = (text: string): string =>
  pieces(text)
    .map(([part]) => part)
    .join("");

export function WhyCard({
  why,
  status,
}: {
  why: WhyReply | undefined;
  status: Status;
}): JSX.Element | null {
  const said = why?.sentence || status.why?.sentence || status.jobStatusMessage || status.error;
  if (!said) return null;
  const lines = why?.lastLines?.trim();
  const more = [...(why?.evidence ?? []), ...(why?.not ?? []).map((n) => `not: ${n}`)];
  return (
    <section class="card why" data-state={status.state} aria-label="Why">
      <p class="why-sentence" role="status">
        {sentence(localTimes(plain(said)))}
      </p>
      {lines && status.state === "error" && (
        <section class="last-lines" aria-label="Last lines" tabIndex={0}>
          <pre>{plain(lines)}</pre>
        </section>
      )}
      {why?.try && why.try.length > 0 && (
        <>
          <h2 class="small">What to do</h2>
          <ul>
            {why.try.map((line) => (
              <li key={line}>{line}</li>
            ))}
          </ul>
        </>
      )}
      {more.length > 0 && (
        <details>
          <summary>Evidence</summary>
          <ul>
            {more.map((line) => (
              <li key={line}>{localTimes(plain(line))}</li>
            ))}
          </ul>
        </details>
      )}
    </section>
  );
}
