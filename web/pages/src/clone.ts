/** The state of "Clone and edit": what was typed stays while other tabs are shown, until the new job
 * is submitted. A request that is repeated has the same id, so that it makes one job. */

import { signal } from "@preact/signals";
import { ApiError, data, requestId } from "./api.ts";
import {
  type CloneForm,
  type DefinitionReply,
  definitionOf,
  formOf,
  NotJson,
} from "./text/definition.ts";
import type { Problem } from "./text/problem.ts";

export interface Editing {
  jid: string;
  reply: DefinitionReply;
  form: CloneForm;
  problems: Problem[];
  /** Why the job was not submitted, other than by problems of fields. */
  error: ApiError | undefined;
  sending: boolean;
}

/** What is edited, for one job at a time. */
export const editing = signal<Editing | undefined>(undefined);

let sent = { content: "", reqId: "" };

/** Begin with the definition of a job, or go on with what was typed. */
export function beginEditing(jid: string, reply: DefinitionReply): void {
  if (editing.value?.jid === jid) return;
  const form = formOf(reply.definition, reply.app);
  editing.value = { jid, reply, form, problems: [], error: undefined, sending: false };
}

export function discard(): void {
  editing.value = undefined;
}

export function edit(change: Partial<CloneForm>): void {
  const now = editing.value;
  if (now) editing.value = { ...now, form: { ...now.form, ...change } };
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
  const body = { computeJid: now.jid, reqId: sent.reqId, definition };
  try {
    const status = await data<{ computeJid?: string; nextRequest?: { computeJid?: string } }>(
      "job-clone",
      body,
    );
    editing.value = undefined;
    return status.computeJid ?? status.nextRequest?.computeJid;
  } catch (thrown) {
    if (!(thrown instanceof ApiError)) throw thrown;
    const problems = thrown.problems;
    const error = problems.length ? undefined : thrown;
    if (editing.value) editing.value = { ...editing.value, problems, error, sending: false };
    return undefined;
  }
}
