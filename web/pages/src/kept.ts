/**
 * What is typed in forms, kept in this tab while the page is reloaded or the session ends. Each tab
 * has its own, and each user. Values that look like secrets are not kept.
 */

import { useState } from "preact/hooks";
import { site } from "./site.ts";
import { withoutSecrets } from "./text/secrets.ts";

/** The store of a tab; its methods fail where the browser forbids them or it is full. */
export type Store = Pick<Storage, "getItem" | "setItem" | "removeItem">;

/** Return the tab's store, or one that keeps nothing where the browser has none. */
export function tabStore(): Store {
  try {
    return window.sessionStorage;
  } catch {
    return { getItem: () => null, setItem: () => {}, removeItem: () => {} };
  }
}

const keyOf = (name: string): string => `jobscribe-${name} ${site.base} ${site.user}`;

/** Return what was kept under this name; undefined: nothing, or nothing that can be read. */
export function loadKept(store: Store, name: string): unknown {
  try {
    return JSON.parse(store.getItem(keyOf(name)) ?? "null") ?? undefined;
  } catch {
    return undefined;
  }
}

/** Keep a value, or remove it if it is undefined. Return whether that was possible. */
export function keep(store: Store, name: string, value: unknown): boolean {
  try {
    if (value === undefined) store.removeItem(keyOf(name));
    else store.setItem(keyOf(name), JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** Return the text of a field, its change, and a function to call when it was sent. */
export function useKept(name: string, initial = ""): [string, (text: string) => void, () => void] {
  const [text, setText] = useState<string>(() => {
    const found = loadKept(tabStore(), name);
    return typeof found === "string" ? found : initial;
  });
  const change = (next: string): void => {
    setText(next);
    keep(tabStore(), name, next === initial ? undefined : withoutSecrets(next));
  };
  return [text, change, () => void keep(tabStore(), name, undefined)];
}
