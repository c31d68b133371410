/** Choose or drop files for the run directory. */

import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { ApiError } from "../api.ts";
import { sentence } from "../text/format.ts";
import { upload } from "../upload.ts";
import { notify } from "./frame.tsx";

interface Sending {
  name: string;
  share: number;
}

export function Upload(props: { jid: string; active: boolean; onDone: () => void }): JSX.Element {
  const { jid, active } = props;
  const [sending, setSending] = useState<Sending>();
  const input = useRef<HTMLInputElement>(null);
  const [over, setOver] = useState(false);
  const send = async (file: File, replace = false): Promise<void> => {
    setSending({ name: file.name, share: 0 });
    try {
      await upload(jid, file, replace, (share) => setSending({ name: file.name, share }));
      notify(`${file.name} is uploaded.`);
      props.onDone();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const there = error.code === "conflict" && !replace;
      notify(`${file.name} is not uploaded. ${sentence(error.message)}`, true, {
        label: there ? "Replace" : "Try again",
        run: () => void send(file, there || replace),
      });
    } finally {
      setSending(undefined);
    }
  };
  const sendAll = async (files: FileList | null | undefined): Promise<void> => {
    for (const file of files ?? []) await send(file);
  };
  if (active) {
    return <p class="upload soft">Files can be uploaded when the run is over.</p>;
  }
  return (
    <fieldset
      class="upload"
      aria-label="Upload"
      data-over={over}
      onDragOver={(e) => {
        e.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(e) => {
        e.preventDefault();
        setOver(false);
        void sendAll(e.dataTransfer?.files);
      }}
    >
      <input
        type="file"
        class="hidden"
        multiple
        tabIndex={-1}
        aria-hidden="true"
        ref={input}
        onChange={(e) => {
          const field = e.currentTarget;
          void sendAll(field.files).then(() => {
            field.value = "";
          });
        }}
      />
      <button type="button" disabled={sending !== undefined} onClick={() => input.current?.click()}>
        Upload files …
      </button>
      <span class="soft drop-hint">or drop them here</span>
      {sending && (
        <>
          <progress aria-label={`Upload of ${sending.name}`} max={1} value={sending.share} />
          <span class="soft number" role="status">
            {Math.round(sending.share * 100)} %
          </span>
        </>
      )}
    </fieldset>
  );
}
