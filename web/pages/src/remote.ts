/** Data of the server in a component: the last answer stays while it is asked again. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "./api.ts";

const PAUSES_MS = [500, 1000, 2000, 4000, 8000];

export interface Remote<T> {
  data: T | undefined;
  error: ApiError | undefined;
  loading: boolean;
  /** Ask again; several calls within a moment become one request. */
  reload: () => void;
  /** Change what is shown, until the next answer. */
  patch: (change: (data: T) => T) => void;
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
  const [turn, setTurn] = useState(0);
  const loader = useRef(load);
  loader.current = load;

  useEffect(() => {
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const attempt = async (tries: number): Promise<void> => {
      try {
        const data = await loader.current(abort.signal);
        if (!abort.signal.aborted) setHeld({ key, data, error: undefined, loading: false });
      } catch (error) {
        if (abort.signal.aborted) return;
        if (!(error instanceof ApiError)) throw error;
        setHeld((h) => ({
          ...h,
          key,
          data: h.key === key || keep ? h.data : undefined,
          error,
          loading: false,
        }));
        if (error.retry) {
          const pause = PAUSES_MS[Math.min(tries, PAUSES_MS.length - 1)];
          timer = setTimeout(() => void attempt(tries + 1), pause);
        }
      }
    };
    setHeld((h) =>
      h.key === key || keep
        ? { ...h, loading: true }
        : { key, data: undefined, error: undefined, loading: true },
    );
    void attempt(0);
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [key, turn, keep]);

  const pending = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const reload = useCallback(() => {
    pending.current ??= setTimeout(() => {
      pending.current = undefined;
      setTurn((t) => t + 1);
    }, 300);
  }, []);
  useEffect(() => () => clearTimeout(pending.current), []);
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
