/** The entries of the navigation, and which addresses are pages. */

import { site } from "./site.ts";

export interface Entry {
  /** Below the path of the blueprint. */
  path: string;
  name: string;
  /** Only administrators see the entry. The supervisor refuses others. */
  admin?: boolean;
}

export const ENTRIES: Entry[] = [
  { path: "/jobs", name: "Jobs" },
  { path: "/submit", name: "New job" },
  { path: "/apps", name: "Apps" },
  { path: "/queues", name: "Queues" },
  { path: "/operations", name: "Operations", admin: true },
  { path: "/docs", name: "Docs" },
  { path: "/account", name: "Account" },
];

/** First parts of the addresses of all pages, as in `PAGES` of `web/blueprint/pages.py`. */
const FIRST_PARTS = [
  "jobs",
  "submit",
  "apps",
  "queues",
  "operations",
  "account",
  "docs",
  "reference",
];

const escaped = (text: string): string => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** Links to other addresses leave the pages. */
export const SCOPE = new RegExp(`^${escaped(site.base)}/(${FIRST_PARTS.join("|")})([/?#]|$)`);
