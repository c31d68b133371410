/** The files of a run that its app offers. */

import type { JSX } from "preact";
import { get } from "../api.ts";
import type { AppStatus, RunOf } from "../apps.ts";
import { isActive } from "../jobs.ts";
import { useRemote } from "../remote.ts";
import { jobPath, path } from "../site.ts";
import { Icon } from "./icons.tsx";
import { ErrorMessage, Loading } from "./messages.tsx";

export function RunFiles({ run, status }: { run: RunOf; status: AppStatus }): JSX.Element {
  const serial = status.computeJobSerial ?? 0;
  const place = `${run.simulationType}/${run.simulationId}/${run.report}`;
  const isStarted = Boolean(status.computeJobStart);
  const key = `${place} ${serial} ${status.state} ${(status.frameCount ?? 0) > 0}`;
  const files = useRemote<string[]>(key, async (signal) => {
    if (!isStarted) return [];
    const address = `/run-files/${place}?computeJobSerial=${serial}`;
    return (await get<{ files: string[] }>(address, signal)).files;
  });
  if (files.error) return <ErrorMessage error={files.error} again={files.reload} />;
  if (!files.data) return <Loading what="files" />;
  const none = isActive(status.state) ? "There are none yet." : "The app offers no files.";
  return (
    <div class="pad">
      {files.data.length === 0 && <p class="soft">{none}</p>}
      <ul class="downloads" aria-label="Files">
        {files.data.map((name) => (
          <li key={name}>
            <a
              class="button"
              href={path(
                `/download-run-file/${place}/-1?suffix=${encodeURIComponent(name)}&computeJobSerial=${serial}`,
              )}
              download
              target="_self"
            >
              <Icon name="download" />
              {name}
            </a>
          </li>
        ))}
      </ul>
      {isStarted && (
        <p>
          <a href={`${jobPath(status.computeJid)}?tab=files`}>All files of the run</a>
        </p>
      )}
    </div>
  );
}
