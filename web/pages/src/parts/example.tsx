/** An example of code, with a button that copies it. */

import type { JSX } from "preact";
import { copyText } from "../text/copy_text.ts";
import { Copy } from "./copy.tsx";

export function Example({ code }: { code: string }): JSX.Element {
  return (
    <div class="example">
      <pre tabIndex={0}>
        <code>{code}</code>
      </pre>
      <Copy text={copyText(code)} label="Copy" />
    </div>
  );
}
