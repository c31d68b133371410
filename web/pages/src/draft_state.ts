/** The draft of a new job as the state of a component, kept in the tab. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Draft, loadDraft, saveDraft } from "./draft.ts";
import { tabStore } from "./kept.ts";

export type SetDraft = (change: Draft | ((draft: Draft) => Draft)) => void;

/** Time after the last change before the draft is kept. */
const KEEP_MS = 250;

/** Return the draft of this tab, its change, and whether a part of it is not kept. */
export function useDraft(): [Draft, SetDraft, boolean] {
  const store = useMemo(tabStore, []);
  const [draft, setDraft] = useState<Draft>(() => loadDraft(store));
  const [isPartly, setPartly] = useState(false);
  // at once, because a change may be followed by the end of the page
  const newest = useRef(draft);
  const change = (next: Draft | ((draft: Draft) => Draft)): void => {
    newest.current = typeof next === "function" ? next(newest.current) : next;
    setDraft(newest.current);
  };
  useEffect(() => {
    const timer = setTimeout(() => setPartly(saveDraft(store, draft)), KEEP_MS);
    return () => clearTimeout(timer);
  }, [draft]);
  useEffect(() => {
    const keep = (): void => void saveDraft(store, newest.current);
    window.addEventListener("pagehide", keep);
    return () => {
      window.removeEventListener("pagehide", keep);
      keep();
    };
  }, []);
  return [draft, change, isPartly];
}
