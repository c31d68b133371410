/** Parts of the pages that are loaded when they are shown. */

import type { ComponentType, JSX } from "preact";
import { lazy } from "preact-iso";
import { tabStore } from "../kept.ts";
import { Frame } from "./frame.tsx";

const PAUSES_MS = [300, 1200];
/** The page is not loaded anew again within this time. */
const RELOAD_MS = 30_000;
const RELOADED = "jobscribe-reloaded";

/** Load a part. The connection may be lost for a moment. */
export async function loaded<T>(load: () => Promise<T>): Promise<T> {
  for (const ms of PAUSES_MS) {
    try {
      return await load();
    } catch {
      await new Promise((resolve) => setTimeout(resolve, ms));
    }
  }
  return load();
}

/** Return a component that is loaded when it is shown. If its file does not arrive, the page is loaded
 * anew: an upgrade of the site may have replaced the file, and Firefox does not ask for it twice. */
export const late = (load: () => Promise<ComponentType>): ComponentType =>
  lazy(() => loaded(load).catch(() => (reloads() ? new Promise<never>(() => {}) : NotLoaded)));

/** Load the page anew, if that was not just done. Return whether it was possible. */
function reloads(): boolean {
  const store = tabStore();
  try {
    const now = Date.now();
    if (now - Number(store.getItem(RELOADED) ?? 0) < RELOAD_MS) return false;
    store.setItem(RELOADED, String(now));
    if (!store.getItem(RELOADED)) return false;
  } catch {
    return false; // it could not be remembered, and would be repeated for ever
  }
  window.location.reload();
  return true;
}

function NotLoaded(): JSX.Element {
  return (
    <Frame title="Not loaded">
      <div class="message error-message" role="alert">
        <p>
          <strong>A part of this page did not arrive.</strong> Jobs go on. Check the connection,
          then load the page again.
        </p>
        <button type="button" onClick={() => window.location.reload()}>
          Load the page again
        </button>
      </div>
    </Frame>
  );
}
