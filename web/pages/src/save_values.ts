/** Stores the values of a simulation, which other tabs and machines may change meanwhile. */

import { ApiError } from "./api.ts";
import { loadStored, type Model, saveSimulation, sidOf, type Values } from "./apps.ts";
import { mergedWith, type Simulation, type StoredSimulation } from "./text/simulation.ts";

/** Changes elsewhere during one attempt to store. */
const TRIES = 4;

/** Tells other tabs of this browser that a simulation was stored. */
const channel =
  typeof BroadcastChannel === "undefined"
    ? undefined
    : new BroadcastChannel("jobscribe-simulations");

export interface LibraryEvent {
  simulationType: string;
  name: string;
}

/** What the stream of this page tells of the library. */
const libraryNews = new EventTarget();

/** Simulations that this page stores now, and whether the stream told of them meanwhile. */
const underWay = new Map<string, { stores: number; heard: boolean }>();

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
  const key = `${type} ${sid}`;
  const own = underWay.get(key) ?? { stores: 0, heard: false };
  underWay.set(key, own);
  own.stores += 1;
  try {
    return await attempts(type, sid, stored, change);
  } finally {
    own.stores -= 1;
    if (own.stores === 0) {
      underWay.delete(key);
      if (own.heard) libraryNews.dispatchEvent(new CustomEvent(key));
    }
  }
}

async function attempts(
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

/** Tell `watchStored` of an event of the stream: a file of the library was stored. */
export function heardStored({ simulationType, name }: LibraryEvent): void {
  const sid = sidOf(name);
  if (!sid) return;
  const own = underWay.get(`${simulationType} ${sid}`);
  // its own change is told before the answer to its request
  if (own) own.heard = true;
  else libraryNews.dispatchEvent(new CustomEvent(`${simulationType} ${sid}`));
}

/** Call `onMaybe` when a simulation may have been stored elsewhere. Return the end of it. */
export function watchStored(type: string, sid: string, onMaybe: () => void): () => void {
  const heard = (event: MessageEvent): void => {
    if (event.data === `${type} ${sid}`) onMaybe();
  };
  const seen = (): void => {
    if (document.visibilityState === "visible") onMaybe();
  };
  libraryNews.addEventListener(`${type} ${sid}`, onMaybe);
  channel?.addEventListener("message", heard);
  document.addEventListener("visibilitychange", seen);
  window.addEventListener("focus", seen);
  return () => {
    libraryNews.removeEventListener(`${type} ${sid}`, onMaybe);
    channel?.removeEventListener("message", heard);
    document.removeEventListener("visibilitychange", seen);
    window.removeEventListener("focus", seen);
  };
}
