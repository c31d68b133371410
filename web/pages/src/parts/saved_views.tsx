/** The saved views above the list of jobs. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { useKept } from "../kept.ts";
import { path } from "../site.ts";
import { followViews, MAX_NAME, MAX_VIEWS, removeView, saveView, views } from "../views.ts";
import { Dialog } from "./dialog.tsx";
import { notify } from "./frame.tsx";
import { Icon } from "./icons.tsx";

export function SavedViews(props: {
  query: string;
  /** Neither filters nor another order: nothing to save. */
  isPlain: boolean;
}): JSX.Element | null {
  const { query, isPlain } = props;
  const [naming, setNaming] = useState(false);
  useEffect(followViews, []);
  const saved = views.value;
  const current = saved.find((v) => v.query === query);
  const maySave = !isPlain && !current;
  if (saved.length === 0 && !maySave) return null;
  return (
    <nav class="views" aria-label="Saved views">
      {saved.map((view) => (
        <span class="view" key={view.name} data-current={view === current}>
          <a href={path("/jobs") + view.query} aria-current={view === current ? "page" : undefined}>
            {view.name}
          </a>
          <button
            type="button"
            class="plain"
            aria-label={`Remove the view ${view.name}`}
            onClick={() => {
              removeView(view.name);
              notify(`The view ${view.name} is removed.`, false, {
                label: "Undo",
                run: () => void saveView(view),
              });
            }}
          >
            <Icon name="close" />
          </button>
        </span>
      ))}
      {maySave && (
        <button type="button" class="plain" onClick={() => setNaming(true)}>
          Save this view …
        </button>
      )}
      {naming && <NameDialog query={query} onClose={() => setNaming(false)} />}
    </nav>
  );
}

function NameDialog({ query, onClose }: { query: string; onClose: () => void }): JSX.Element {
  const [name, setName, forget] = useKept("view-name");
  const full = views.value.length >= MAX_VIEWS;
  const save = (event: Event): void => {
    event.preventDefault();
    const trimmed = name.trim();
    if (!trimmed || full) return;
    if (!saveView({ name: trimmed, query })) {
      notify(
        "The browser does not permit to keep views. A bookmark of this page does the same.",
        true,
      );
    }
    forget();
    onClose();
  };
  return (
    <Dialog title="Save this view" onClose={onClose}>
      <form onSubmit={save}>
        <p class="soft">
          {full
            ? `There are ${MAX_VIEWS} views already. Remove one first.`
            : "Filters and order get a name in this browser. To share them, send the address."}
        </p>
        <label>
          Name
          <input
            required
            maxLength={MAX_NAME}
            value={name}
            onInput={(e) => setName(e.currentTarget.value)}
          />
        </label>
        <div class="buttons">
          <button type="submit" class="main" disabled={full}>
            Save
          </button>
          <button type="button" onClick={onClose}>
            Do not save
          </button>
        </div>
      </form>
    </Dialog>
  );
}
