/** The state of a job: icon, colour and word. */

import type { JSX } from "preact";
import { stateWord } from "../jobs.ts";
import { Icon } from "./icons.tsx";

export function StateBadge({ state }: { state: string }): JSX.Element {
  return (
    <span class="state" data-state={state}>
      <Icon name={state} />
      {stateWord(state)}
    </span>
  );
}
