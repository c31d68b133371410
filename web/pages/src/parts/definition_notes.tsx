/** What a definition of a job does not show, and why. */

import type { JSX } from "preact";
import type { DefinitionReply } from "../text/definition.ts";
import { sentence } from "../text/format.ts";

export function Notes({ reply }: { reply: DefinitionReply }): JSX.Element | null {
  const { notes, withheld } = reply;
  if (notes.length === 0 && withheld.length === 0) return null;
  return (
    <ul class="soft notes">
      {notes.map((note) => (
        <li key={note}>{sentence(note)}</li>
      ))}
      {withheld.map((w) => (
        <li key={w.where}>{sentence(`${w.where}: looks like a secret and is not shown`)}</li>
      ))}
    </ul>
  );
}
