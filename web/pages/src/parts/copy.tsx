/** A button that copies a text. A page without encryption has no clipboard, and no button. */

import type { JSX } from "preact";
import { notify } from "./frame.tsx";
import { Icon } from "./icons.tsx";

export function Copy({ text, label }: { text: string; label: string }): JSX.Element | null {
  if (!navigator.clipboard) return null;
  const copy = (): void => {
    void navigator.clipboard.writeText(text).then(
      () => notify("Copied."),
      () => notify("The browser does not permit to copy.", true),
    );
  };
  return (
    <button type="button" class="plain copy" aria-label={label} title={label} onClick={copy}>
      <Icon name="copy" />
    </button>
  );
}
