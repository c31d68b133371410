/** What a sign-in to a cluster is about, and what its failure means. Pure. */

import { sentence } from "./format.ts";

/** As in an `srException` of the front end. */
export interface SignInNeed {
  cluster?: string | null;
  host?: string | null;
  reason?: string | null;
  sentence?: string | null;
  advice?: string | null;
  simulationType?: string;
  simulationId?: string;
  report?: string;
}

const REASONS: Record<string, string> = {
  "invalid-creds": "The cluster has refused this. Wait for the next code before you try again.",
  "general-connection-error": "The cluster cannot be reached at the moment.",
};

/** Return what is wrong, "" if nothing is. failed: a sign-in was tried. */
export function signInSentence(need: SignInNeed, failed = false): string {
  const said = [need.sentence, need.advice].filter(Boolean).map((text) => sentence(String(text)));
  if (need.reason === "no-creds" || (!failed && !need.reason)) return "";
  if (said.length > 0) return said.join(" ");
  return REASONS[need.reason ?? ""] ?? "This did not work.";
}
