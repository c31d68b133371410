/** The tags of a job, and a dialog that changes them. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, data } from "../api.ts";
import { useKept } from "../kept.ts";
import { sentence } from "../text/format.ts";
import { Dialog } from "./dialog.tsx";
import { notify } from "./frame.tsx";

export function Tags(props: { jid: string; tags: string[]; onChanged: () => void }): JSX.Element {
  const { tags } = props;
  const [editing, setEditing] = useState(false);
  return (
    <div>
      <dt>Tags</dt>
      <dd>
        {tags.map((tag) => (
          <span class="tag" key={tag}>
            {tag}
          </span>
        ))}
        <button type="button" class="plain tag-edit" onClick={() => setEditing(true)}>
          {tags.length ? "Edit tags" : "Add tags"}
        </button>
        {editing && <TagDialog {...props} onClose={() => setEditing(false)} />}
      </dd>
    </div>
  );
}

const words = (text: string): string[] => [...new Set(text.split(/[\s,]+/).filter(Boolean))];

function TagDialog(props: {
  jid: string;
  tags: string[];
  onChanged: () => void;
  onClose: () => void;
}): JSX.Element {
  const { jid, tags } = props;
  const [text, setText, forget] = useKept(`tags ${jid}`, tags.join(" "));
  const [problem, setProblem] = useState("");
  const save = async (event: Event): Promise<void> => {
    event.preventDefault();
    const wanted = words(text);
    const add = wanted.filter((t) => !tags.includes(t));
    const remove = tags.filter((t) => !wanted.includes(t));
    try {
      await data("job-tag", { computeJid: jid, add, remove });
      forget();
      props.onChanged();
      notify("The tags are changed.");
      props.onClose();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setProblem(sentence(error.message));
    }
  };
  return (
    <Dialog title="Tags" onClose={props.onClose}>
      <form onSubmit={save}>
        <label>
          Tags, separated by spaces
          <input
            name="tags"
            value={text}
            aria-invalid={problem !== ""}
            aria-describedby="tags-problem"
            onInput={(e) => setText(e.currentTarget.value)}
          />
        </label>
        <p class="field-problem" id="tags-problem" role="alert">
          {problem}
        </p>
        <div class="buttons">
          <button type="submit" class="main">
            Save
          </button>
          <button
            type="button"
            onClick={() => {
              forget();
              props.onClose();
            }}
          >
            Leave as they are
          </button>
        </div>
      </form>
    </Dialog>
  );
}
