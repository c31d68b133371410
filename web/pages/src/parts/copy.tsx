/** Texts of programs, and buttons that copy them. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { copyText } from "../clipboard.ts";
import { Icon } from "./icons.tsx";

const SHOWN_MS = 3000;
const RESULTS = { copied: "Copied", refused: "The browser does not permit it", "": "" };

/** The result is beside the button, because a notice would be behind a dialog. */
export function Copy({ text, label }: { text: string; label: string }): JSX.Element {
  const [result, setResult] = useState<keyof typeof RESULTS>("");
  useEffect(() => {
    if (!result) return;
    const timer = setTimeout(() => setResult(""), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [result]);
  const copy = (): void => {
    void copyText(text).then(
      () => setResult("copied"),
      () => setResult("refused"),
    );
  };
  return (
    <span class="copying">
      <span role="status">{RESULTS[result]}</span>
      <button type="button" class="plain copy" aria-label={label} title={label} onClick={copy}>
        <Icon name={result === "copied" ? "completed" : "copy"} />
      </button>
    </span>
  );
}

export function Snippet({ title, text }: { title: string; text: string }): JSX.Element {
  return (
    <section class="snippet" aria-label={title}>
      <div class="snippet-head">
        <h2 class="small">{title}</h2>
        <Copy text={text} label={`Copy: ${title}`} />
      </div>
      {/* biome-ignore lint/a11y/useSemanticElements: a text that scrolls, not a group of fields */}
      <pre tabIndex={0} role="group" aria-label={title}>
        {text}
      </pre>
    </section>
  );
}
