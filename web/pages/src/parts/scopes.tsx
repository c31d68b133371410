/** Whose jobs the list shows, for users who may see those of others. */

import type { JSX } from "preact";
import { isAdmin, seesOthers } from "../me.ts";
import type { Filters, Scope } from "../text/filters.ts";

const SCOPE_NAMES: Record<Scope, string> = { mine: "Mine", group: "My group", all: "All" };

export function Scopes(props: {
  filters: Filters;
  onChange: (change: Partial<Filters>) => void;
}): JSX.Element | null {
  const { filters } = props;
  if (!seesOthers() && filters.scope === "mine") return null;
  const others: Scope = isAdmin() ? "all" : "group";
  return (
    <fieldset class="chips scopes">
      <legend class="hidden">Whose jobs</legend>
      {(["mine", others] as const).map((scope) => (
        <button
          type="button"
          class="chip"
          key={scope}
          aria-pressed={(filters.scope === "mine") === (scope === "mine")}
          onClick={() => props.onChange({ scope, user: "" })}
        >
          {SCOPE_NAMES[scope]}
        </button>
      ))}
    </fieldset>
  );
}
