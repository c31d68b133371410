/**
 * What is typed on the page *New job*, kept in this tab while the page is reloaded or the session
 * ends. Each tab has its own, and each user. Values that look like secrets are not kept.
 */

import { keep, loadKept, type Store } from "./kept.ts";
import { EMPTY, EMPTY_ROLE, type Form, type Role } from "./text/job_form.ts";
import { withoutSecrets } from "./text/secrets.ts";

export interface Draft {
  form: Form;
  text: string;
  noImage: boolean;
  /** The request that was sent and has no answer yet: the same content gets the same id. */
  sent: { content: string; reqId: string } | null;
}

export const NO_DRAFT: Draft = { form: EMPTY, text: "", noImage: false, sent: null };

const NAME = "new-job";

export function loadDraft(store: Store): Draft {
  const found = loadKept(store, NAME);
  if (typeof found !== "object" || found === null) return NO_DRAFT;
  const { form, text, noImage, sent } = found as Partial<Draft>;
  const texts = Object.entries(form ?? {}).filter(
    ([name, value]) => name in EMPTY && typeof value === "string",
  );
  return {
    form: { ...EMPTY, ...Object.fromEntries(texts), roles: rolesOf(form?.roles) },
    text: typeof text === "string" ? text : "",
    noImage: noImage === true,
    sent: typeof sent?.reqId === "string" && typeof sent.content === "string" ? sent : null,
  };
}

/** Return the fields of a form without values that look like secrets. */
const kept = <T extends object>(fields: T): T =>
  Object.fromEntries(
    Object.entries(fields).map(([name, value]) => [name, withoutSecrets(String(value))]),
  ) as T;

/** Return the roles of a draft, also one that an older page has kept. */
const rolesOf = (found: unknown): Role[] =>
  (Array.isArray(found) ? found : []).map((role: object) => ({
    ...EMPTY_ROLE,
    ...Object.fromEntries(
      Object.entries(role ?? {}).filter(
        ([name, value]) => name in EMPTY_ROLE && typeof value === "string",
      ),
    ),
  }));

/** Keep the draft. Return whether something was left out, or could not be kept. */
export function saveDraft(store: Store, draft: Draft): boolean {
  const roles = draft.form.roles.map(kept);
  const form: Form = { ...kept({ ...draft.form, roles: "" }), roles };
  const text = withoutSecrets(draft.text);
  const isWhole = text === draft.text && JSON.stringify(form) === JSON.stringify(draft.form);
  // the content of a sent request would repeat what is left out
  const whole: Draft = { ...draft, form, text, sent: isWhole ? draft.sent : null };
  return !keep(store, NAME, whole) || !isWhole;
}
