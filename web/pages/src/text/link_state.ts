/** What the page shows about its stream of changes. Pure. */

/**
 * asking: this site has no stream, so the page asks from time to time. full: the user has too many
 * streams; the page asks, too.
 */
export type Link = "opening" | "live" | "asking" | "full" | "signedOut" | "lost";

/** Return the state after a failure. http: status of the answer; 0: no answer. */
export function linkAfter(http: number): Link {
  if (http === 401) return "signedOut";
  if (http === 429) return "full";
  return http >= 400 && http < 500 ? "asking" : "lost";
}

/** Return whether the page asks from time to time in this state. */
export const isAsking = (link: Link): boolean =>
  link === "asking" || link === "full" || link === "signedOut";
