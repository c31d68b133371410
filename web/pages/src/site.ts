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
};

export const path = (below: string): string => site.base + below;

export const jobPath = (jid: string): string => path(`/jobs/${jid}`);
