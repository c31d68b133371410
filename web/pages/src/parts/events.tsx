/** The events of a job, as its story tells them. */

import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { data } from "../api.ts";
import { useRemote } from "../remote.ts";
import { ErrorMessage, Loading } from "./messages.tsx";

interface StoryReply {
  lines: string[];
}

export function Events({
  jid,
  position,
}: {
  jid: string;
  position: number | undefined;
}): JSX.Element {
  const story = useRemote<StoryReply>(`events ${jid}`, (signal) =>
    data("job-story", { computeJid: jid }, signal),
  );
  const { reload } = story;
  useEffect(reload, [position, reload]);
  if (story.error) return <ErrorMessage error={story.error} again={story.reload} />;
  if (!story.data) return <Loading what="events" />;
  return (
    <section class="log" tabIndex={0} aria-label="Events">
      <pre>{story.data.lines.join("\n")}</pre>
    </section>
  );
}
