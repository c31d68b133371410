/** Tabs by the pattern of the ARIA guide: arrow keys move, one tab is in the order of focus. */

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";

export interface TabItem<T extends string> {
  name: T;
  label: string;
}

const STEPS: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1 };

export function Tabs<T extends string>(props: {
  label: string;
  items: TabItem<T>[];
  selected: T;
  onSelect: (name: T) => void;
  children: ComponentChildren;
}): JSX.Element {
  const list = useRef<HTMLDivElement>(null);
  const { items, selected } = props;
  useEffect(() => {
    // on a narrow page it may be outside of what is visible; only the list scrolls, not the page
    const tabs = list.current;
    const tab = tabs?.querySelector<HTMLElement>(`#tab-${selected}`);
    if (!tabs || !tab) return;
    const [box, own] = [tabs.getBoundingClientRect(), tab.getBoundingClientRect()];
    if (own.left < box.left) tabs.scrollLeft += own.left - box.left;
    else if (own.right > box.right) tabs.scrollLeft += own.right - box.right;
  }, [selected]);
  const onKeyDown = (event: KeyboardEvent): void => {
    const step = STEPS[event.key];
    if (step === undefined) return;
    const at = items.findIndex((i) => i.name === selected);
    const next = items[(at + step + items.length) % items.length];
    if (!next) return;
    event.preventDefault();
    props.onSelect(next.name);
    list.current?.querySelector<HTMLElement>(`#tab-${next.name}`)?.focus();
  };
  return (
    <>
      <div class="tabs" role="tablist" aria-label={props.label} ref={list} onKeyDown={onKeyDown}>
        {items.map(({ name, label }) => (
          <button
            type="button"
            role="tab"
            key={name}
            id={`tab-${name}`}
            aria-selected={name === selected}
            aria-controls="tab-panel"
            tabIndex={name === selected ? 0 : -1}
            onClick={() => props.onSelect(name)}
          >
            {label}
          </button>
        ))}
      </div>
      <div
        class="card tab-panel"
        role="tabpanel"
        id="tab-panel"
        aria-labelledby={`tab-${selected}`}
      >
        {props.children}
      </div>
    </>
  );
}
