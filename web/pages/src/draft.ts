/**
 * What is typed on the page *New job*, kept in this tab while the page is reloaded or the session
 * ends. Each tab has its own, and each user. Values that look like secrets are not kept.
 */

import { site } from "./site.ts";
import { EMPTY, type Form } from "./text/job_form.ts";
import { withoutSecrets } from "./text/secrets.ts";

export interface Draft {
  form: Form;
  text: string;
  noImage: boolean;
  /** The request that was sent and has no answer yet: the same content gets the same id. */
  sent: { content: string; reqId: string } | null;
}

/** The store of a tab; its methods fail where the browser forbids them or it is full. */
export type Store = Pick<Storage, "getItem" | "setItem" | "removeItem">;

export const NO_DRAFT: Draft = { form: EMPTY, text: "", noImage: false, sent: null };

const KEY = `jobscribe-new-job ${site.base} ${site.user}`;

export function loadDraft(store: Store): Draft {
  try {
    const found: unknown = JSON.parse(store.getItem(KEY) ?? "null");
    if (typeof found !== "object" || found === null) return NO_DRAFT;
    const { form, text, noImage, sent } = found as Partial<Draft>;
    const texts = Object.entries(form ?? {}).filter(
      ([name, value]) => name in EMPTY && typeof value === "string",
    );
    return {
      form: { ...EMPTY, ...Object.fromEntries(texts) },
      text: typeof text === "string" ? text : "",
      noImage: noImage === true,
      sent: typeof sent?.reqId === "string" && typeof sent.content === "string" ? sent : null,
    };
  } catch {
    return NO_DRAFT; // no store, or of another version
  }
}

/** Keep the draft. Return whether something was left out, or could not be kept. */
export function saveDraft(store: Store, draft: Draft): boolean {
  const form = Object.fromEntries(
    Object.entries(draft.form).map(([name, value]) => [name, withoutSecrets(value)]),
  ) as unknown as Form;
  const text = withoutSecrets(draft.text);
  const isWhole = text === draft.text && JSON.stringify(form) === JSON.stringify(draft.form);
  // the content of a sent request would repeat what is left out
  const kept: Draft = { ...draft, form, text, sent: isWhole ? draft.sent : null };
  try {
    store.setItem(KEY, JSON.stringify(kept));
    return !isWhole;
  } catch {
    return true;
  }
}

/** Return the tab's store, or one that keeps nothing where the browser has none. */
export function tabStore(): Store {
  try {
    return window.sessionStorage;
  } catch {
    return { getItem: () => null, setItem: () => {}, removeItem: () => {} };
  }
}
