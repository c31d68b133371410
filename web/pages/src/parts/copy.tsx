/** A text of a program with a button that copies it. */

import type { JSX } from "preact";
import { notify } from "./frame.tsx";
import { Icon } from "./icons.tsx";

export function Snippet({ title, text }: { title: string; text: string }): JSX.Element {
  return (
    <section class="snippet" aria-label={title}>
      <div class="snippet-head">
        <h2 class="small">{title}</h2>
        {/* a page without encryption has no clipboard */}
        {navigator.clipboard && (
          <button
            type="button"
            class="plain copy"
            aria-label={`Copy: ${title}`}
            onClick={() => {
              void navigator.clipboard.writeText(text).then(
                () => notify("Copied."),
                () => notify("The browser does not permit to copy.", true),
              );
            }}
          >
            <Icon name="copy" /> Copy
          </button>
        )}
      </div>
      {/* biome-ignore lint/a11y/useSemanticElements: a text that scrolls, not a group of fields */}
      <pre tabIndex={0} role="group" aria-label={title}>
        {text}
      </pre>
    </section>
  );
}
