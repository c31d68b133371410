/** A wide table in a region that the keyboard can scroll. */

import type { ComponentChildren, JSX } from "preact";

export function Scroll(props: { label: string; children: ComponentChildren }): JSX.Element {
  return (
    <section class="scroll" tabIndex={0} aria-label={props.label}>
      {props.children}
    </section>
  );
}
