/** The filters of the page of jobs. Each change is a new address. */

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { stateWord } from "../jobs.ts";
import { CAUSES, type Filters, isFiltered, NO_FILTERS, STATES } from "../text/filters.ts";
import { Icon } from "./icons.tsx";

type Change = (change: Partial<Filters>) => void;

/** Time after the last key before a search begins. */
const TYPING_MS = 350;

const MORE = ["queues", "drivers", "apps"] as const;
const LABELS = { queues: "Queue", drivers: "Driver", apps: "App" };

export function FilterBar({
  filters,
  onChange,
}: {
  filters: Filters;
  onChange: Change;
}): JSX.Element {
  const more =
    (filters.user ? 1 : 0) +
    filters.queues.length +
    filters.drivers.length +
    filters.apps.length +
    filters.causes.length +
    (filters.since ? 1 : 0) +
    (filters.until ? 1 : 0);
  const [open, setOpen] = useState(more > 0);
  const toggle = (state: string): void => {
    const has = filters.states.includes(state);
    onChange({
      states: has ? filters.states.filter((s) => s !== state) : [...filters.states, state],
    });
  };
  return (
    <search class="filters" aria-label="Jobs">
      <div class="filter-row">
        <Search text={filters.text} onChange={onChange} />
        <fieldset class="chips">
          <legend class="hidden">States</legend>
          {STATES.map((state) => (
            <button
              type="button"
              class="chip"
              key={state}
              data-state={state}
              aria-pressed={filters.states.includes(state)}
              onClick={() => toggle(state)}
            >
              <Icon name={state} />
              {stateWord(state)}
            </button>
          ))}
        </fieldset>
        <button
          type="button"
          aria-expanded={open}
          aria-controls="more-filters"
          onClick={() => setOpen(!open)}
        >
          Filters{more ? ` (${more})` : ""}
        </button>
        {isFiltered(filters) && (
          <button
            type="button"
            class="plain"
            onClick={() => onChange({ ...NO_FILTERS, scope: filters.scope, sort: filters.sort })}
          >
            Remove all
          </button>
        )}
      </div>
      <div class="filter-row more" id="more-filters" hidden={!open}>
        {filters.scope !== "mine" && (
          <Words
            label="User"
            values={filters.user ? [filters.user] : []}
            onChange={(v) => onChange({ user: v[0] ?? "" })}
          />
        )}
        {MORE.map((name) => (
          <Words
            key={name}
            label={LABELS[name]}
            values={filters[name]}
            onChange={(v) => onChange({ [name]: v })}
          />
        ))}
        <label>
          Reason of the end
          <select
            value={filters.causes[0] ?? ""}
            onChange={(e) =>
              onChange({ causes: e.currentTarget.value ? [e.currentTarget.value] : [] })
            }
          >
            <option value="">any</option>
            {CAUSES.map(([cause, word]) => (
              <option value={cause} key={cause}>
                {word}
              </option>
            ))}
          </select>
        </label>
        <label>
          Submitted from
          <input
            type="date"
            value={filters.since}
            onChange={(e) => onChange({ since: e.currentTarget.value })}
          />
        </label>
        <label>
          to
          <input
            type="date"
            value={filters.until}
            onChange={(e) => onChange({ until: e.currentTarget.value })}
          />
        </label>
      </div>
    </search>
  );
}

function Search({ text, onChange }: { text: string; onChange: Change }): JSX.Element {
  const [typed, setTyped] = useState(text);
  useEffect(() => setTyped(text), [text]);
  useEffect(() => {
    if (typed.trim() === text.trim()) return;
    const timer = setTimeout(() => onChange({ text: typed.trim() }), TYPING_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  return (
    <label class="search">
      <Icon name="search" />
      <span class="hidden">Search by name, command or id</span>
      <input
        type="search"
        placeholder="Name, command or id"
        maxLength={200}
        value={typed}
        onInput={(e) => setTyped(e.currentTarget.value)}
      />
    </label>
  );
}

/** A field for words that are separated by commas; it counts when it is left, or with Enter. */
function Words(props: {
  label: string;
  values: string[];
  onChange: (values: string[]) => void;
}): JSX.Element {
  const shown = props.values.join(", ");
  const [typed, setTyped] = useState(shown);
  useEffect(() => setTyped(shown), [shown]);
  const done = (): void => {
    const values = typed
      .split(",")
      .map((w) => w.trim())
      .filter((w) => w !== "");
    if (values.join(", ") !== shown) props.onChange(values);
  };
  return (
    <label>
      {props.label}
      <input
        value={typed}
        placeholder="any"
        maxLength={200}
        onInput={(e) => setTyped(e.currentTarget.value)}
        onChange={done}
        onKeyDown={(e) => e.key === "Enter" && done()}
      />
    </label>
  );
}
