/** Facts about the site from the document's head, and addresses below the path of the blueprint. */

const meta = (name: string): string =>
  document.querySelector<HTMLMetaElement>(`meta[name="jobscribe-${name}"]`)?.content ?? "";

export const site = {
  base: meta("base"),
  user: meta("user"),
  home: meta("home"),
  title: meta("site") || "jobscribe",
  /** A POST to it ends the session; empty if the site signs people out by itself. */
  signOut: meta("sign-out"),
  /** Where a person logs a machine in; empty if the site has no such page. */
  device: meta("device"),
  /** The supervisor for commands; empty if only the operator knows it. */
  api: meta("api"),
};

export const path = (below: string): string => site.base + below;

export const jobPath = (jid: string): string => path(`/jobs/${jid}`);

const JID = /^([A-Za-z0-9]{8})-[A-Za-z0-9]{8}-\w+$/;

/** Return the user of a job; undefined for a text that is no computeJid. */
export const ownerOf = (jid: unknown): string | undefined =>
  typeof jid === "string" ? JID.exec(jid)?.[1] : undefined;

export const isOwn = (jid: string): boolean => ownerOf(jid) === site.user;

/** Return the address of a download of a job. */
export const downloadPath = (name: string, jid: string): string =>
  path(`/page-data/${isOwn(jid) ? "" : "site/"}${name}/${jid}`);

/** Return the address of a file of a job. */
export const filePath = (jid: string, name: string): string =>
  `${downloadPath("job-file", jid)}?name=${encodeURIComponent(name)}`;
