/** An action of a dialog: one at a time, and its failure is said in the dialog. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, unreadable } from "../api.ts";
import { sentence } from "../text/format.ts";

const NOTHING = Symbol("not done");

export interface Action {
  busy: boolean;
  problem: JSX.Element | null;
  /** Do it. The result tells with `isDone` whether it was done. */
  run: <T>(work: () => Promise<T>) => Promise<T | typeof NOTHING>;
}

/** Return whether an action was done, and the dialog is still open. */
export const isDone = <T,>(result: T | typeof NOTHING): result is T => result !== NOTHING;

export function useAction(): Action {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | undefined>();
  const open = useRef(true);
  useEffect(
    () => () => {
      open.current = false;
    },
    [],
  );
  const run = async <T,>(work: () => Promise<T>): Promise<T | typeof NOTHING> => {
    setBusy(true);
    setError(undefined);
    try {
      const result = await work();
      return open.current ? result : NOTHING;
    } catch (thrown) {
      if (open.current) setError(thrown instanceof ApiError ? thrown : unreadable());
      return NOTHING;
    } finally {
      if (open.current) setBusy(false);
    }
  };
  const problem = error ? (
    <p class="problem" role="alert">
      {sentence(error.message)} {sentence(error.advice)}
    </p>
  ) : null;
  return { busy, problem, run };
}
