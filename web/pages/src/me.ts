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

/** Return the query of a stream that has the jobs of others, as far as this user may see them. */
export function othersQuery(): string {
  if (isAdmin()) return "?of=all";
  return seesOthers() ? "?of=group" : "";
}

/** Ask who is signed in. Without an answer the pages of a user without a role are shown. */
export async function loadMe(): Promise<void> {
  try {
    me.value = { ...(await data<Me>("site/whoami")), uid: site.user };
  } catch {
    // the page's own requests report what is wrong
  }
}

/** Counts what the stream of the page has said about the site: drains of hosts change, too. */
export const siteNews = signal(0);

/** Take what the stream of a page says about the site. */
export function siteChanged(said: Pick<Me, "siteDrain">): void {
  siteNews.value += 1;
  const last = me.value.siteDrain;
  const { siteDrain } = said;
  if (last?.at === siteDrain?.at && last?.reason === siteDrain?.reason) return;
  me.value = { ...me.value, siteDrain };
}

/** For pages without a stream, and for the role. */
const AGAIN_MS = 60_000;

export async function followMe(): Promise<void> {
  setInterval(() => document.visibilityState === "visible" && void loadMe(), AGAIN_MS);
  await loadMe();
}
