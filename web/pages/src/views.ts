/**
 * Saved views of the list of jobs: names for addresses. They are kept in the browser: the supervisor
 * stores facts about runs, a front end has no store of its own, and a link already carries a view to
 * other people. Each user and site has its own; tabs see each other's changes.
 */

import { signal } from "@preact/signals";
import { site } from "./site.ts";

export interface SavedView {
  name: string;
  /** Query of the list, with its question mark; "" for the plain list. */
  query: string;
}

export type ViewStore = Pick<Storage, "getItem" | "setItem">;

const KEY = `jobscribe-views ${site.base} ${site.user}`;
export const MAX_VIEWS = 30;
export const MAX_NAME = 60;

function browserStore(): ViewStore {
  try {
    return window.localStorage;
  } catch {
    return { getItem: () => null, setItem: () => {} };
  }
}

export function readViews(store: ViewStore = browserStore()): SavedView[] {
  try {
    const found: unknown = JSON.parse(store.getItem(KEY) ?? "[]");
    if (!Array.isArray(found)) return [];
    return found
      .filter((v) => typeof v?.name === "string" && /^(\?|$)/.test(v?.query))
      .slice(0, MAX_VIEWS);
  } catch {
    return []; // no store, or of another version
  }
}

/** Change the views as they are now, also after a change of another tab. Return whether it is kept. */
function change(edit: (views: SavedView[]) => SavedView[], store: ViewStore): boolean {
  views.value = edit(readViews(store)).slice(0, MAX_VIEWS);
  try {
    store.setItem(KEY, JSON.stringify(views.value));
    return true;
  } catch {
    return false;
  }
}

/** Save a view; one with the same name is replaced. */
export const saveView = (view: SavedView, store: ViewStore = browserStore()): boolean =>
  change((all) => [...all.filter((v) => v.name !== view.name), view], store);

export const removeView = (name: string, store: ViewStore = browserStore()): boolean =>
  change((all) => all.filter((v) => v.name !== name), store);

export const views = signal<SavedView[]>([]);

/** Follow the changes of other tabs. Return the function that ends it. */
export function followViews(): () => void {
  const read = (): void => {
    views.value = readViews();
  };
  read();
  window.addEventListener("storage", read);
  return () => window.removeEventListener("storage", read);
}
