/** The signed-in user: role and users for whom one may act, asked once. */

import { signal } from "@preact/signals";
import { data } from "./api.ts";
import { site } from "./site.ts";

export interface Me {
  uid: string;
  role: "user" | "groupAdmin" | "admin" | "secretHolder";
  scopes: string[];
  members: string[];
  /** Since when and why the site starts no new runs. */
  siteDrain: { at: number; reason: string } | null;
}

/** What is known at once; the role follows. */
export const me = signal<Me>({
  uid: site.user,
  role: "user",
  scopes: [],
  members: [],
  siteDrain: null,
});

/** The hook `admin` of a site makes a `secretHolder`. */
export const isAdmin = (): boolean => ["admin", "secretHolder"].includes(me.value.role);
export const seesOthers = (): boolean => isAdmin() || me.value.members.length > 0;

/** Ask who is signed in. Without an answer the pages of a user without a role are shown. */
export async function loadMe(): Promise<void> {
  try {
    me.value = { ...(await data<Me>("site/whoami")), uid: site.user };
  } catch {
    // the page's own requests report what is wrong
  }
}

/** A drain of the site begins and ends without an event. */
const AGAIN_MS = 60_000;

export async function followMe(): Promise<void> {
  setInterval(() => document.visibilityState === "visible" && void loadMe(), AGAIN_MS);
  await loadMe();
}
