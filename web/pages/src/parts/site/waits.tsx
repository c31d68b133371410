/** Which runs wait, for what, and why. */

import type { JSX } from "preact";
import { now } from "../../clock.ts";
import { jobPath } from "../../site.ts";
import { ago, localTimes, moment, plural, sentence } from "../../text/format.ts";
import { type QueuesReply, waitWord } from "../../text/site.ts";
import { Badge, Nothing, Part } from "./part.tsx";

export function Waits({ reply }: { reply: QueuesReply }): JSX.Element {
  const more = reply.waiting - reply.waits.length;
  const note = reply.all
    ? plural(reply.waiting, "run")
    : `${plural(reply.waiting, "run")} of yours`;
  return (
    <Part title="Waiting" note={reply.waiting ? note : undefined}>
      {reply.waits.length === 0 ? (
        <Nothing>{reply.all ? "No run waits." : "None of your runs waits."}</Nothing>
      ) : (
        <ul class="waits">
          {reply.waits.map((wait) => (
            <li key={wait.computeJid}>
              <div class="wait-head">
                <Badge state="pending" word={waitWord(wait.queueState)} />
                <a class="title" href={jobPath(wait.computeJid)}>
                  {wait.title}
                </a>
                <span class="soft wait-facts" title={moment(wait.queuedAt)}>
                  {[
                    reply.all ? (reply.names[wait.uid] ?? wait.uid) : null,
                    wait.driver,
                    wait.queue === "default" ? null : wait.queue,
                    ago(wait.queuedAt, now.value),
                  ]
                    .filter(Boolean)
                    .join(" · ")}
                </span>
              </div>
              {wait.sentence && <p>{sentence(localTimes(wait.sentence))}</p>}
            </li>
          ))}
        </ul>
      )}
      {more > 0 && <Nothing>{plural(more, "more run")} behind these.</Nothing>}
    </Part>
  );
}
