/** Stores the values of a simulation, which other tabs and machines may change meanwhile. */

import { ApiError } from "./api.ts";
import { loadStored, type Model, saveSimulation, type Values } from "./apps.ts";
import { mergedWith, type Simulation, type StoredSimulation } from "./text/simulation.ts";

/** Changes elsewhere during one attempt to store. */
const TRIES = 4;

/** Tells other tabs of this browser that a simulation was stored. */
const channel =
  typeof BroadcastChannel === "undefined"
    ? undefined
    : new BroadcastChannel("jobscribe-simulations");

const isConflict = (error: unknown): boolean =>
  error instanceof ApiError && error.code === "conflict";

/**
 * Store a change of what is stored, also if that was changed meanwhile. change: returns undefined to store
 * nothing. Return what is stored then, and whether it has the change. Raises ApiError.
 */
export async function store(
  type: string,
  sid: string,
  stored: StoredSimulation,
  change: (found: Simulation | undefined) => Simulation | undefined,
): Promise<[StoredSimulation, boolean]> {
  for (let tries = 1; ; tries += 1) {
    const next = change(stored.found);
    if (!next) return [stored, false];
    try {
      const tag = await saveSimulation(type, sid, next, stored.tag);
      channel?.postMessage(`${type} ${sid}`);
      return [{ found: next, tag }, true];
    } catch (error) {
      if (!isConflict(error) || tries >= TRIES) throw error;
      stored = await loadStored(type, sid);
    }
  }
}

/** Store values, unless others were stored for this model meanwhile. Like `store`. */
export function storeValues(
  type: string,
  sid: string,
  stored: StoredSimulation,
  base: Simulation,
  model: Model,
  values: Values,
): Promise<[StoredSimulation, boolean]> {
  return store(type, sid, stored, (found) => {
    if (found === stored.found) {
      return { ...base, model: model.name, models: { ...base.models, [model.name]: values } };
    }
    return mergedWith(found, base, model, values);
  });
}

/** Call `onMaybe` when a simulation may have been stored elsewhere. Return the end of it. */
export function watchStored(type: string, sid: string, onMaybe: () => void): () => void {
  const heard = (event: MessageEvent): void => {
    if (event.data === `${type} ${sid}`) onMaybe();
  };
  const seen = (): void => {
    if (document.visibilityState === "visible") onMaybe();
  };
  channel?.addEventListener("message", heard);
  document.addEventListener("visibilitychange", seen);
  window.addEventListener("focus", seen);
  return () => {
    channel?.removeEventListener("message", heard);
    document.removeEventListener("visibilitychange", seen);
    window.removeEventListener("focus", seen);
  };
}
