/** The files of the run directory, with downloads. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { data } from "../api.ts";
import { useRemote } from "../remote.ts";
import { downloadPath } from "../site.ts";
import { bytes, moment } from "../text/format.ts";
import { ErrorMessage, Loading } from "./messages.tsx";
import { Scroll } from "./scroll.tsx";

interface FilesReply {
  files: { name: string; size: number; mtime: number }[];
  next: string | null;
}

const PAGE = 200;

export function Files({ jid, active }: { jid: string; active: boolean }): JSX.Element {
  const [after, setAfter] = useState("");
  const files = useRemote<FilesReply>(`files ${jid} ${active} ${after}`, (signal) =>
    data("run-files", { computeJid: jid, after, limit: PAGE }, signal),
  );
  if (files.error) return <ErrorMessage error={files.error} again={files.reload} />;
  if (!files.data) return <Loading what="files" />;
  const { next } = files.data;
  if (files.data.files.length === 0) return <p class="pad soft">The run directory has no files.</p>;
  return (
    <>
      <Scroll label="Files">
        <table class="flat">
          <caption class="hidden">Files of the run directory</caption>
          <thead>
            <tr>
              <th scope="col">Name</th>
              <th scope="col">Size</th>
              <th scope="col">Changed</th>
            </tr>
          </thead>
          <tbody>
            {files.data.files.map((file) => (
              <tr key={file.name}>
                <td>
                  <a
                    href={`${downloadPath("job-file", jid)}?name=${encodeURIComponent(file.name)}`}
                    download
                    target="_self"
                  >
                    {file.name}
                  </a>
                </td>
                <td class="number">{bytes(file.size)}</td>
                <td class="number">{moment(file.mtime)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {(after || next) && (
        <div class="pad buttons">
          {after && (
            <button type="button" onClick={() => setAfter("")}>
              First files
            </button>
          )}
          {next && (
            <button type="button" onClick={() => setAfter(next)}>
              More files
            </button>
          )}
        </div>
      )}
    </>
  );
}
