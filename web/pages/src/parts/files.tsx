/** The files of the run directory: list, preview, downloads and uploads. */

import "./files.css";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { data } from "../api.ts";
import { useRemote } from "../remote.ts";
import { filePath, isOwn, jobPath } from "../site.ts";
import { bytes, moment } from "../text/format.ts";
import { formatView, type JobView } from "../text/job_view.ts";
import { Icon } from "./icons.tsx";
import { ErrorMessage, Loading } from "./messages.tsx";
import { Preview } from "./preview.tsx";
import { Table } from "./table.tsx";
import { Upload } from "./upload.tsx";

export interface RunFile {
  name: string;
  size: number;
  mtime: number;
}

export interface FilesReply {
  files: RunFile[];
  next: string | null;
}

const PAGE = 200;

export function Files(props: { jid: string; active: boolean; view: JobView }): JSX.Element {
  const { jid, active, view } = props;
  const [after, setAfter] = useState("");
  const files = useRemote<FilesReply>(`files ${jid} ${active} ${after}`, (signal) =>
    data("run-files", { computeJid: jid, after, limit: PAGE }, signal),
  );
  if (files.error) return <ErrorMessage error={files.error} again={files.reload} />;
  if (!files.data) return <Loading what="files" />;
  const { next } = files.data;
  const found = files.data.files;
  const at = found.find((f) => f.name === view.file);
  const link = (file: string): string => jobPath(jid) + formatView({ ...view, file });
  return (
    <div class={view.file ? "files with-preview" : "files"}>
      <div>
        {isOwn(jid) && <Upload jid={jid} active={active} onDone={files.reload} />}
        {found.length === 0 && !after ? (
          <p class="pad soft">The run directory has no files.</p>
        ) : (
          <Table
            label="Files of the run directory"
            heads={[
              "Name",
              "Size",
              { text: "Changed", class: "changed" },
              { text: "Download", hidden: true },
            ]}
          >
            {found.map((file) => (
              <tr key={file.name} aria-current={file.name === view.file ? "true" : undefined}>
                <td class="file-name">
                  <a href={link(file.name)}>{file.name}</a>
                </td>
                <td class="number">{bytes(file.size)}</td>
                <td class="number changed">{moment(file.mtime)}</td>
                <td>
                  <a
                    class="icon-link"
                    href={filePath(jid, file.name)}
                    download
                    target="_self"
                    aria-label={`Download ${file.name}`}
                    title="Download"
                  >
                    <Icon name="download" />
                  </a>
                </td>
              </tr>
            ))}
          </Table>
        )}
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
      </div>
      {view.file && (
        <Preview
          key={view.file}
          jid={jid}
          name={view.file}
          changed={at ? `${at.size} ${at.mtime}` : ""}
          close={link("")}
        />
      )}
    </div>
  );
}
