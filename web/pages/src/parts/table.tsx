/** A table in a region that the keyboard can scroll. The cells of its rows belong to the caller. */

import type { ComponentChildren, JSX } from "preact";
import { Scroll } from "./scroll.tsx";

/** The head of a column: its text, or also a class (the same as that of its cells). hidden: for screen
 * readers only. */
export type Head = string | { text: string; class?: string; hidden?: boolean };

/** label: names the region and the table for screen readers. class: `flat` within a card. heads: those
 * that are false or missing are left out. */
export function Table(props: {
  label: string;
  class?: string;
  heads: (Head | false | null | undefined)[];
  children: ComponentChildren;
}): JSX.Element {
  const heads = props.heads.flatMap((head) => (head === false || head == null ? [] : [head]));
  return (
    <Scroll label={props.label}>
      <table class={props.class ?? "flat"}>
        <caption class="hidden">{props.label}</caption>
        <thead>
          <tr>
            {heads.map((head, n) => (
              <HeadCell key={n} {...(typeof head === "string" ? { text: head } : head)} />
            ))}
          </tr>
        </thead>
        <tbody>{props.children}</tbody>
      </table>
    </Scroll>
  );
}

function HeadCell(head: Exclude<Head, string>): JSX.Element {
  return (
    <th scope="col" class={head.class}>
      {head.hidden ? <span class="hidden">{head.text}</span> : head.text}
    </th>
  );
}
