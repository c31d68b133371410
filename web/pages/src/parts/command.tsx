/** A command to be typed elsewhere, with a button that copies it. */

import type { JSX } from "preact";
import { copyText } from "../clipboard.ts";
import { notify } from "./frame.tsx";
import { Icon } from "./icons.tsx";

export function Command({ text }: { text: string }): JSX.Element {
  return (
    <p class="copy-command">
      <code>{text}</code>
      <button
        type="button"
        class="plain copy"
        aria-label={`Copy ${text}`}
        title="Copy"
        onClick={() => {
          void copyText(text).then(
            () => notify("The command is copied."),
            () => notify("The browser does not permit to copy the command.", true),
          );
        }}
      >
        <Icon name="copy" />
      </button>
    </p>
  );
}
