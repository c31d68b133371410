/** The text of a job file: pasted, dropped, opened or typed. */

import type { JSX } from "preact";
import type { Draft } from "../draft.ts";
import { bytes } from "../text/format.ts";
import { Editor, type Place } from "./editor.tsx";
import { notify } from "./frame.tsx";

export function FileTab(props: {
  draft: Draft;
  isOpenpai: boolean;
  marked: ReadonlySet<number>;
  place: Place | undefined;
  max: number;
  onText: (text: string) => void;
  onFile: (file: File) => void;
  onNoImage: (noImage: boolean) => void;
}): JSX.Element {
  const { draft } = props;
  return (
    <>
      <div class="file-head">
        <p class="soft">Paste, drop or open a job file or a configuration of OpenPAI.</p>
        <label class="button file-button">
          Open a file …
          <input
            type="file"
            class="hidden"
            accept=".yaml,.yml,.json,text/*"
            onChange={(e) => {
              const file = e.currentTarget.files?.[0];
              if (file) props.onFile(file);
              e.currentTarget.value = "";
            }}
          />
        </label>
      </div>
      <Editor
        label="Job file"
        value={draft.text}
        marked={props.marked}
        place={props.place}
        maxLength={props.max}
        onInput={props.onText}
        onTooLong={(length) => notify(tooLarge("The text", length, props.max), true)}
      />
      {(props.isOpenpai || draft.noImage) && (
        <label class="no-image">
          <input
            type="checkbox"
            checked={draft.noImage}
            onChange={(e) => props.onNoImage(e.currentTarget.checked)}
          />
          <span>
            Run the commands without their images (<code>--no-image</code>)
          </span>
        </label>
      )}
    </>
  );
}

const tooLarge = (what: string, size: number, max: number): string =>
  `${what} has ${bytes(size)}; at most ${bytes(max)} can be submitted. Put data into separate files.`;

/** Return the text of a file. Raises an Error with a sentence. */
export async function readText(file: File, max: number): Promise<string> {
  if (file.size > max) throw new Error(tooLarge(file.name, file.size, max));
  const content = await file.arrayBuffer();
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(content);
  } catch {
    throw new Error(`${file.name} is no text in UTF-8, so it is no job file.`);
  }
}
