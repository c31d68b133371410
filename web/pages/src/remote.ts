/** Data of the server in a component: the last answer stays while it is asked again. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, unreadable } from "./api.ts";
import { Asker } from "./asker.ts";

export interface Remote<T> {
  data: T | undefined;
  error: ApiError | undefined;
  loading: boolean;
  /** Ask again; several calls within a moment become one request. */
  reload: () => void;
  /** Change what is shown, until the next answer. */
  patch: (change: (data: T) => T) => void;
}

/** Time for which a page waits for the answers of which it consists. */
const TOGETHER_MS = 500;

/**
 * Return whether each of these has its first answer, or their time is over. Parts of a page that are
 * shown one by one move each other, and a click misses what has moved.
 */
export function useTogether(remotes: Pick<Remote<unknown>, "data" | "loading">[]): boolean {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), TOGETHER_MS);
    return () => clearTimeout(timer);
  }, []);
  const were = useRef(false);
  were.current ||= isLate || remotes.every((r) => r.data !== undefined || !r.loading);
  return were.current;
}

interface Held<T> {
  key: string;
  data: T | undefined;
  error: ApiError | undefined;
  loading: boolean;
}

/**
 * Load data for `key`, anew when it changes. A request that may succeed later is repeated. The data
 * of another key are not kept unless `keep` is true.
 */
export function useRemote<T>(
  key: string,
  load: (signal: AbortSignal) => Promise<T>,
  keep = false,
): Remote<T> {
  const [held, setHeld] = useState<Held<T>>({
    key,
    data: undefined,
    error: undefined,
    loading: true,
  });
  const loader = useRef(load);
  loader.current = load;
  const asker = useRef<Asker<T> | undefined>(undefined);

  useEffect(() => {
    const current = new Asker<T>((signal) => loader.current(signal), {
      onAsk: () =>
        setHeld((h) =>
          h.key === key || keep
            ? { ...h, loading: true }
            : { key, data: undefined, error: undefined, loading: true },
        ),
      onData: (data) => setHeld({ key, data, error: undefined, loading: false }),
      onError: (thrown) => {
        const error = thrown instanceof ApiError ? thrown : unreadable();
        setHeld((h) => ({
          key,
          data: h.key === key || keep ? h.data : undefined,
          error,
          loading: false,
        }));
        return error.retry;
      },
    });
    asker.current = current;
    return () => current.close();
  }, [key, keep]);

  const reload = useCallback(() => asker.current?.reload(), []);
  const patch = useCallback((change: (data: T) => T) => {
    setHeld((h) => (h.data === undefined ? h : { ...h, data: change(h.data) }));
  }, []);
  const fresh = held.key === key || keep;
  return {
    data: fresh ? held.data : undefined,
    error: fresh ? held.error : undefined,
    loading: fresh ? held.loading : true,
    reload,
    patch,
  };
}
