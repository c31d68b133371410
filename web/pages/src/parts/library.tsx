/** The user's library of an app: uploads, downloads, deletion. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError } from "../api.ts";
import { deleteLibFile, libPath, loadLibrary, sidOf, uploadLibFile } from "../apps.ts";
import { useRemote } from "../remote.ts";
import { path } from "../site.ts";
import { bytes, moment, sentence } from "../text/format.ts";
import { Dialog } from "./dialog.tsx";
import { notify } from "./frame.tsx";
import { ErrorMessage, Loading } from "./messages.tsx";
import { Table } from "./table.tsx";

export function Library({ type }: { type: string }): JSX.Element {
  const library = useRemote(`library ${type}`, (signal) => loadLibrary(type, signal));
  const [sending, setSending] = useState<{ name: string; share: number } | undefined>();
  const [removing, setRemoving] = useState("");
  const [over, setOver] = useState(false);
  const files = (library.data ?? []).filter((f) => !sidOf(f.name));

  const upload = async (list: FileList | null | undefined): Promise<void> => {
    for (const file of list ?? []) {
      setSending({ name: file.name, share: 0 });
      await said(`${file.name} is not uploaded.`, () =>
        uploadLibFile(type, file, (share) => setSending({ name: file.name, share })),
      );
    }
    setSending(undefined);
    library.reload();
  };
  const remove = (name: string): void => {
    setRemoving("");
    void said(`${name} is not deleted.`, () => deleteLibFile(type, name)).then(library.reload);
  };
  if (library.error) return <ErrorMessage error={library.error} again={library.reload} />;
  if (!library.data) return <Loading what="the library" />;
  return (
    <section
      class="library"
      aria-label="Library"
      data-over={over}
      onDragOver={(e) => {
        e.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(e) => {
        e.preventDefault();
        setOver(false);
        void upload(e.dataTransfer?.files);
      }}
    >
      <div class="pad library-head">
        <p class="soft">Files that runs of this app may read. Drop files here, or choose them.</p>
        <label class="button">
          Upload …
          <input
            type="file"
            class="hidden"
            multiple
            onChange={(e) => {
              const input = e.currentTarget;
              void upload(input.files).then(() => {
                input.value = "";
              });
            }}
          />
        </label>
      </div>
      {sending && (
        <p class="pad sending" role="status">
          <progress max={1} value={sending.share} aria-label={`Upload of ${sending.name}`} />
          {sending.name}
        </p>
      )}
      {files.length > 0 && (
        <Table
          label="Files of the library"
          heads={["Name", "Size", "Changed", { text: "Actions", hidden: true }]}
        >
          {files.map((file) => (
            <tr key={file.name}>
              <td>
                <a href={path(libPath(type, file.name))} download target="_self">
                  {file.name}
                </a>
              </td>
              <td class="number">{bytes(file.size)}</td>
              <td class="number">{file.mtime ? moment(file.mtime) : "–"}</td>
              <td>
                <button
                  type="button"
                  class="plain"
                  aria-label={`Delete ${file.name}`}
                  onClick={() => setRemoving(file.name)}
                >
                  Delete …
                </button>
              </td>
            </tr>
          ))}
        </Table>
      )}
      {files.length === 0 && <p class="pad soft">The library has no files yet.</p>}
      {removing && (
        <Dialog title="Delete this file?" onClose={() => setRemoving("")}>
          <p>{removing}</p>
          <div class="buttons">
            <button type="button" class="danger" onClick={() => remove(removing)}>
              Delete
            </button>
            <button type="button" onClick={() => setRemoving("")}>
              Keep
            </button>
          </div>
        </Dialog>
      )}
    </section>
  );
}

/** Do it. A failure is said after `what`. */
export async function said(what: string, work: () => Promise<unknown>): Promise<boolean> {
  try {
    await work();
    return true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    notify(`${what} ${sentence(error.message)} ${sentence(error.advice)}`, true);
    return false;
  }
}
