/** Texts of programs, and buttons that copy them. A page without encryption has no clipboard, and no
 * button.
 */

import type { JSX } from "preact";
import { notify } from "./frame.tsx";
import { Icon } from "./icons.tsx";

/** word: shown beside the icon. */
export function Copy(props: { text: string; label: string; word?: string }): JSX.Element | null {
  const { text, label, word } = props;
  if (!navigator.clipboard) return null;
  const copy = (): void => {
    void navigator.clipboard.writeText(text).then(
      () => notify("Copied."),
      () => notify("The browser does not permit to copy.", true),
    );
  };
  return (
    <button type="button" class="plain copy" aria-label={label} title={label} onClick={copy}>
      <Icon name="copy" /> {word}
    </button>
  );
}

export function Snippet({ title, text }: { title: string; text: string }): JSX.Element {
  return (
    <section class="snippet" aria-label={title}>
      <div class="snippet-head">
        <h2 class="small">{title}</h2>
        <Copy text={text} label={`Copy: ${title}`} word="Copy" />
      </div>
      {/* biome-ignore lint/a11y/useSemanticElements: a text that scrolls, not a group of fields */}
      <pre tabIndex={0} role="group" aria-label={title}>
        {text}
      </pre>
    </section>
  );
}
