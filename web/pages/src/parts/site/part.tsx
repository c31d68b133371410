/** A part of a page about the site: a card with a heading, and its small pieces. */

import type { ComponentChildren, JSX } from "preact";
import { partOf } from "../../text/site.ts";
import { Icon } from "../icons.tsx";

export function Part(props: {
  title: string;
  note?: string | undefined;
  actions?: ComponentChildren;
  children: ComponentChildren;
}): JSX.Element {
  return (
    <section class="card part">
      <div class="part-head">
        <h2>{props.title}</h2>
        {props.note && <p class="soft">{props.note}</p>}
        {props.actions && <div class="part-actions">{props.actions}</div>}
      </div>
      {props.children}
    </section>
  );
}

/** How much of something is in use: a bar with numbers. total: null without a limit. */
export function Meter(props: {
  label: string;
  used: number;
  total: number | null;
  text: string;
}): JSX.Element {
  const part = partOf(props.used, props.total);
  return (
    <div class="meter" data-full={part >= 0.9}>
      <span class="meter-label">{props.label}</span>
      <span class="number">{props.text}</span>
      {props.total !== null && (
        <progress max={100} value={Math.round(part * 100)} aria-label={props.label} />
      )}
    </div>
  );
}

/** A word with the colour and icon of a state of a job. */
export function Badge({ state, word }: { state: string; word: string }): JSX.Element {
  return (
    <span class="state" data-state={state}>
      <Icon name={state} />
      {word}
    </span>
  );
}

export function Nothing({ children }: { children: ComponentChildren }): JSX.Element {
  return <p class="pad soft">{children}</p>;
}
