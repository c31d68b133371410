/** Repeated requests of a visible page: one at a time, in turn. */

import { useEffect, useRef } from "preact/hooks";

/** The shortest time between two requests of a page for data that no stream has. */
export const EVERY_MS = 5000;

/**
 * Call the first of these functions every other time and the others in between in turn, as long as
 * the page is visible.
 */
export function useTurns(reloads: (() => void)[]): void {
  const current = useRef(reloads);
  current.current = reloads;
  useEffect(() => {
    let count = 0;
    const timer = setInterval(() => {
      if (document.visibilityState !== "visible") return;
      turn(current.current, count)?.();
      count += 1;
    }, EVERY_MS);
    return () => clearInterval(timer);
  }, []);
}

/** Return the entry whose turn it is: 0 1 0 2 0 3 and so on. */
export function turn<T>(entries: T[], count: number): T | undefined {
  if (count % 2 === 0 || entries.length < 2) return entries[0];
  return entries[1 + (((count - 1) / 2) % (entries.length - 1))];
}

/** Return a function that reloads at once, then at most every `ms`, and once after the last call. */
export function usePaced(reload: () => void, ms: number): () => void {
  const current = useRef(reload);
  current.current = reload;
  const last = useRef(0);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  return () => {
    timer.current ??= setTimeout(
      () => {
        timer.current = undefined;
        last.current = Date.now();
        current.current();
      },
      Math.max(0, last.current + ms - Date.now()),
    );
  };
}

/** Return a function that reloads at once, but at most every EVERY_MS. */
export function useAtMost(reload: () => void): () => void {
  const last = useRef(0);
  return () => {
    const time = Date.now();
    if (time - last.current < EVERY_MS) return;
    last.current = time;
    reload();
  };
}
