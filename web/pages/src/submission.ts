/** Submits a job with one request id, again and again while the site is away. */

import { ApiError, data, requestId } from "./api.ts";
import type { Draft } from "./draft.ts";

export interface Order {
  text: string;
  noImage: boolean;
  tags: string[];
}

export interface RunReply {
  computeJid?: string;
  code?: string;
  error?: string;
}

export interface SubmitReply {
  jobs: Record<string, RunReply[]>;
}

const PAUSES_MS = [1000, 2000, 4000, 8000];

/** Return the id for this order: that of the last request if it had the same content. */
export function idFor(order: Order, sent: Draft["sent"]): { content: string; reqId: string } {
  const content = JSON.stringify(order);
  return sent?.content === content ? sent : { content, reqId: requestId() };
}

export const sendOrder = (order: Order, reqId: string, signal: AbortSignal): Promise<SubmitReply> =>
  data<SubmitReply>("run-text", { reqId, ...order }, signal);

/**
 * Send a request until it is answered. It is repeated after errors that may pass; `onWait` is told
 * the error and the number of tries. Raises the error that stays, or the reason of the signal.
 */
export async function untilAnswered<T>(
  send: () => Promise<T>,
  signal: AbortSignal,
  onWait: (error: ApiError, tries: number) => void,
): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await send();
    } catch (error) {
      if (!(error instanceof ApiError) || !error.retry || signal.aborted) throw error;
      onWait(error, tries);
      await pause(PAUSES_MS[Math.min(tries, PAUSES_MS.length) - 1] ?? 1000, signal);
    }
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });
}
