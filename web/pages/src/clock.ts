/** The time in unix seconds as a signal: it moves once per second while the page is visible. */

import { signal } from "@preact/signals";

export const now = signal(Date.now() / 1000);

setInterval(() => {
  if (document.visibilityState === "visible") now.value = Date.now() / 1000;
}, 1000);
