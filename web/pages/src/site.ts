/** Facts about the site from the document's head, and addresses below the path of the blueprint. */

const meta = (name: string): string =>
  document.querySelector<HTMLMetaElement>(`meta[name="jobscribe-${name}"]`)?.content ?? "";

export const site = {
  base: meta("base"),
  user: meta("user"),
  home: meta("home"),
  title: meta("site") || "jobscribe",
  /** Where a person logs a machine in; empty if the site has no such page. */
  device: meta("device"),
  /** The supervisor for commands; empty if only the operator knows it. */
  api: meta("api"),
};

export const path = (below: string): string => site.base + below;

export const jobPath = (jid: string): string => path(`/jobs/${jid}`);
