/** The state of "Clone and edit": what was typed stays until the new job is submitted, also while the
 * page is reloaded or the session ends. A request that is repeated has the same id, so that it makes
 * one job. */

import { signal } from "@preact/signals";
import { ApiError, data, requestId } from "./api.ts";
import { keep, loadKept, tabStore } from "./kept.ts";
import {
  type CloneForm,
  type DefinitionReply,
  definitionOf,
  formOf,
  isCloneForm,
  isObject,
  keptForm,
  NotJson,
} from "./text/definition.ts";
import type { Problem } from "./text/problem.ts";
import { withoutSecrets } from "./text/secrets.ts";

export interface Editing {
  jid: string;
  reply: DefinitionReply;
  form: CloneForm;
  problems: Problem[];
  /** Why the job was not submitted, other than by problems of fields. */
  error: ApiError | undefined;
  sending: boolean;
  /** A part of what was typed is not kept in the tab, because it looks like a secret. */
  partly: boolean;
}

/** What is edited, for one job at a time. */
export const editing = signal<Editing | undefined>(undefined);

let sent = { content: "", reqId: "" };

/** Time after the last change before what was typed is kept. */
const KEEP_MS = 250;
let keeping: ReturnType<typeof setTimeout> | undefined;
window.addEventListener("pagehide", () => keeping !== undefined && keepNow());

const nameOf = (jid: string): string => `clone ${jid}`;

/** Keep what is typed, a moment after its last change. */
function keepSoon(): void {
  clearTimeout(keeping);
  keeping = setTimeout(keepNow, KEEP_MS);
}

function keepNow(): void {
  clearTimeout(keeping);
  keeping = undefined;
  const now = editing.value;
  if (!now) return;
  const form = keptForm(now.form);
  const definition = JSON.stringify(now.reply.definition, null, 2);
  const isKept = withoutSecrets(definition) === definition;
  const partly = JSON.stringify(form) !== JSON.stringify(now.form);
  const kept = {
    form,
    definition: isKept ? now.reply.definition : null,
    sent: partly ? null : sent,
  };
  keep(tabStore(), nameOf(now.jid), kept);
  if (partly !== now.partly) editing.value = { ...now, partly };
}

/** Begin with the definition of a job, or go on with what was typed. */
export function beginEditing(jid: string, reply: DefinitionReply): void {
  if (editing.value?.jid === jid) return;
  if (keeping !== undefined) keepNow(); // of another job
  const started = { problems: [], error: undefined, sending: false, partly: false };
  const kept = loadKept(tabStore(), nameOf(jid));
  if (!isObject(kept) || !isCloneForm(kept.form)) {
    editing.value = { jid, reply, form: formOf(reply.definition, reply.app), ...started };
    return;
  }
  const definition = isObject(kept.definition) ? kept.definition : reply.definition;
  if (isObject(kept.sent))
    sent = { content: String(kept.sent.content), reqId: String(kept.sent.reqId) };
  editing.value = { jid, reply: { ...reply, definition }, form: kept.form, ...started };
}

/** Forget what was typed. */
export function discard(): void {
  clearTimeout(keeping);
  keeping = undefined;
  const now = editing.value;
  if (now) keep(tabStore(), nameOf(now.jid), undefined);
  editing.value = undefined;
}

export function edit(change: Partial<CloneForm>): void {
  const now = editing.value;
  if (!now) return;
  editing.value = { ...now, form: { ...now.form, ...change } };
  keepSoon();
}

/** Show the definition as JSON, or as a form again. */
export function editText(on: boolean): void {
  const now = editing.value;
  if (!now) return;
  const { definition, app } = now.reply;
  try {
    const values = definitionOf(definition, app, now.form);
    const form = on ? { ...now.form, text: JSON.stringify(values, null, 2) } : formOf(values, app);
    const reply = on ? now.reply : { ...now.reply, definition: values };
    editing.value = { ...now, reply, form, problems: [] };
    keepSoon();
  } catch (error) {
    editing.value = { ...now, problems: [problemOf(error)] };
  }
}

function problemOf(error: unknown): Problem {
  if (!(error instanceof NotJson)) throw error;
  return { path: error.path, problem: error.message, right: "an object in JSON" };
}

/** Submit what was typed. Return the id of the new job, or undefined; the state says why. */
export async function submitClone(): Promise<string | undefined> {
  const now = editing.value;
  if (!now || now.sending) return undefined;
  let definition: Record<string, unknown>;
  try {
    definition = definitionOf(now.reply.definition, now.reply.app, now.form);
  } catch (error) {
    editing.value = { ...now, problems: [problemOf(error)], error: undefined };
    return undefined;
  }
  editing.value = { ...now, problems: [], error: undefined, sending: true };
  const content = now.jid + JSON.stringify(definition);
  if (sent.content !== content) sent = { content, reqId: requestId() };
  keepNow();
  const body = { computeJid: now.jid, reqId: sent.reqId, definition };
  try {
    const status = await data<{ computeJid?: string; nextRequest?: { computeJid?: string } }>(
      "job-clone",
      body,
    );
    discard();
    return status.computeJid ?? status.nextRequest?.computeJid;
  } catch (thrown) {
    if (!(thrown instanceof ApiError)) throw thrown;
    const problems = thrown.problems;
    const error = problems.length ? undefined : thrown;
    if (editing.value) editing.value = { ...editing.value, problems, error, sending: false };
    return undefined;
  }
}
