/** The page *New job*: a form or a job file, checked while it is typed, and its submission. */

import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { ApiError, data } from "../api.ts";
import { type Draft, NO_DRAFT } from "../draft.ts";
import { type SetDraft, useDraft } from "../draft_state.ts";
import { useLive } from "../live.ts";
import type { Place } from "../parts/editor.tsx";
import { Frame, notify } from "../parts/frame.tsx";
import { type Check, CheckPanel } from "../parts/job_check.tsx";
import { JobFields } from "../parts/job_fields.tsx";
import { FileTab, readText } from "../parts/job_file.tsx";
import { ErrorMessage } from "../parts/messages.tsx";
import { Tabs } from "../parts/tabs.tsx";
import { type Remote, useRemote, useTogether } from "../remote.ts";
import { jobPath, path } from "../site.ts";
import { idFor, type Order, type SubmitReply, sendOrder, untilAnswered } from "../submission.ts";
import { plural, sentence } from "../text/format.ts";
import {
  byField,
  commandsOf,
  descriptionOf,
  EMPTY,
  type Form,
  type Options,
  words,
} from "../text/job_form.ts";

/** Time after the last key before the text is checked. */
const TYPING_MS = 400;
const MAX_TEXT = 1_048_576;

const UNKNOWN =
  "It is not known whether the job was submitted. Submit it again: the same job starts once.";

type View = "form" | "file";

interface Sending {
  abort: AbortController;
  waiting: string;
}

export function SubmitPage(): JSX.Element {
  const { url, route } = useLocation();
  const view: View = new URLSearchParams(url.split("?")[1]).get("tab") === "file" ? "file" : "form";
  const [draft, setDraft, isPartly] = useDraft();
  const [place, setPlace] = useState<Place>();
  const { sending, failure, forget, send } = useSubmission(draft, setDraft, route);
  const options = useRemote<Options>("options", (signal) => data("job-options", {}, signal));
  useLive(
    "",
    () => {},
    () => {},
  );

  const { form } = draft;
  const isForm = view === "form";
  const { text, fileText, isBlank } = useText(draft, isForm, options.data);
  const noImage = draft.noImage && !isForm;
  const check = useCheck(isBlank ? "" : text, noImage);
  const problems = isBlank ? [] : (check.data?.problems ?? []);
  const fields = useMemo(
    () => byField(isForm ? problems : [], form.roles),
    [check.data, isForm, isBlank],
  );
  const max = options.data?.maxTextBytes ?? MAX_TEXT;

  const show = (next: View): void => route(path("/submit") + (next === "file" ? "?tab=file" : ""));
  const changeForm = (change: Partial<Form>): void => {
    forget();
    setDraft((d) => ({ ...d, form: { ...d.form, ...change } }));
  };
  const changeText = (next: string): void => {
    forget();
    setDraft((d) => ({ ...d, text: next }));
  };
  const open = (file: File, use: (text: string) => void): void => {
    void readText(file, max).then(use, (error: Error) => notify(error.message, true));
  };

  const jump = (line: number): void => setPlace((last) => ({ line, jump: (last?.jump ?? 0) + 1 }));
  const submit = (event: Event): void => {
    event.preventDefault();
    void send({
      text,
      noImage,
      tags: isForm ? words(form.tags) : [],
    });
  };

  const { roles } = form;
  const openScript = (file: File): void =>
    open(file, (command) =>
      changeForm(roles[0] ? { roles: [{ ...roles[0], command }, ...roles.slice(1)] } : { command }),
    );
  const openText = (file: File): void => open(file, changeText);
  const onDrop = (event: DragEvent): void => {
    const file = event.dataTransfer?.files[0];
    if (!file) return;
    event.preventDefault();
    if (isForm) openScript(file);
    else openText(file);
  };

  return (
    <Frame title="New job">
      <form class="submit-page" onSubmit={submit} onDragOver={onDrag} onDrop={onDrop}>
        <Head
          draft={draft}
          onClear={setDraft}
          isBlank={isBlank}
          isSending={sending !== undefined}
        />
        {sending && <Waiting sending={sending} />}
        {failure && <Failure error={failure} />}
        {options.error && !failure && <ErrorMessage error={options.error} again={options.reload} />}
        <div class="submit-columns">
          <div>
            <Tabs
              label="Ways to describe a job"
              items={[
                { name: "form", label: "Form" },
                { name: "file", label: "Job file" },
              ]}
              selected={view}
              onSelect={show}
            >
              {isForm ? (
                <div class="pad">
                  <WholeFields
                    form={form}
                    options={options}
                    problems={fields}
                    onChange={changeForm}
                    onScript={openScript}
                  />
                </div>
              ) : (
                <FileTab
                  draft={draft}
                  isOpenpai={(check.data?.openpai ?? 0) > 0}
                  marked={new Set(problems.flatMap((p) => (p.line ? [p.line] : [])))}
                  place={place}
                  max={max}
                  onText={changeText}
                  onFile={openText}
                  onNoImage={(noImage) => setDraft((d) => ({ ...d, noImage }))}
                />
              )}
            </Tabs>
            {isPartly && (
              <p class="soft hint">
                Values that look like secrets are not kept when this page is reloaded.
              </p>
            )}
          </div>
          <aside class="card check-panel" aria-label="Check" aria-busy={check.loading}>
            <CheckPanel
              check={check}
              blank={isBlank}
              general={isForm ? (fields.get(undefined) ?? []) : undefined}
              fileText={isForm ? fileText : undefined}
              tags={isForm ? words(form.tags) : []}
              onLine={isForm ? undefined : jump}
            />
            {isForm && !isBlank && (
              <button
                type="button"
                onClick={() => {
                  const before = draft.text;
                  changeText(fileText);
                  show("file");
                  if (before.trim() && before !== fileText) {
                    const undo = { label: "Undo", run: () => changeText(before) };
                    notify("The text of the job file is replaced.", false, undo);
                  }
                }}
              >
                Edit as a job file
              </button>
            )}
          </aside>
        </div>
      </form>
    </Frame>
  );
}

/** The fields, with the options that are said beside them: these would move the fields. */
function WholeFields(
  props: Omit<Parameters<typeof JobFields>[0], "options"> & { options: Remote<Options> },
): JSX.Element | null {
  const isWhole = useTogether([props.options]);
  return isWhole ? <JobFields {...props} options={props.options.data} /> : null;
}

/** Permit a file to be dropped; a text that is dragged goes into its field as usual. */
function onDrag(event: DragEvent): void {
  if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
}

function Head(props: {
  draft: Draft;
  onClear: (draft: Draft) => void;
  isBlank: boolean;
  isSending: boolean;
}): JSX.Element {
  return (
    <div class="page-head">
      <h1>New job</h1>
      <div class="buttons actions">
        <Clear draft={props.draft} onClear={props.onClear} />
        <button type="submit" class="main" disabled={props.isBlank || props.isSending}>
          {props.isSending ? "Submitting …" : "Submit"}
        </button>
      </div>
    </div>
  );
}

/** Return the text that is checked and submitted; that of the form is a job file in JSON. */
function useText(
  draft: Draft,
  isForm: boolean,
  options: Options | undefined,
): { text: string; fileText: string; isBlank: boolean } {
  const { form } = draft;
  const fileText = useMemo(
    () => JSON.stringify(descriptionOf(form, options), null, 2),
    [form, options],
  );
  const isBlank = (isForm ? commandsOf(form) : [draft.text]).every((t) => t.trim() === "");
  return { text: isForm ? fileText : draft.text, fileText, isBlank };
}

function Waiting({ sending }: { sending: Sending }): JSX.Element | null {
  if (!sending.waiting) return null;
  return (
    <div class="message" role="status">
      <p>
        <strong>{sending.waiting}</strong> The job is not submitted yet. The page tries again.
      </p>
      <button type="button" onClick={() => sending.abort.abort()}>
        Stop trying
      </button>
    </div>
  );
}

function Clear(props: { draft: Draft; onClear: (draft: Draft) => void }): JSX.Element | null {
  const { draft, onClear } = props;
  const isEmpty = draft.text === "" && JSON.stringify(draft.form) === JSON.stringify(EMPTY);
  if (isEmpty) return null;
  const clear = (): void => {
    onClear(NO_DRAFT);
    notify("Cleared.", false, { label: "Undo", run: () => onClear(draft) });
  };
  return (
    <button type="button" onClick={clear}>
      Clear
    </button>
  );
}

function Failure({ error }: { error: ApiError }): JSX.Element {
  if (error.isSignedOut) {
    return (
      <>
        <ErrorMessage error={error} />
        <p class="soft">The job is not submitted. What you typed is kept in this tab.</p>
      </>
    );
  }
  return (
    <div class="message error-message" role="alert">
      <p>
        <strong>Not submitted.</strong> {sentence(error.message)}
        {error.problems.length === 0 && ` ${sentence(error.advice)}`}
      </p>
    </div>
  );
}

/** Go to the page of the new job, or to the list for several. */
function follow(reply: SubmitReply, route: (url: string) => void): void {
  const runs = Object.values(reply.jobs).flat();
  const refused = runs.filter((run) => run.code !== undefined);
  const jids = runs.flatMap((run) => (run.computeJid ? [run.computeJid] : []));
  if (refused.length) {
    const first = sentence(refused[0]?.error ?? "");
    notify(`${plural(jids.length, "run")} submitted, ${refused.length} refused. ${first}`, true);
  }
  const [only] = jids;
  if (jids.length === 0) return;
  if (jids.length === 1 && only) {
    route(jobPath(only));
    return;
  }
  if (!refused.length) notify(`${plural(jids.length, "run")} submitted.`);
  const groups = new Set(jids.map((jid) => jid.split("-")[1]));
  route(path("/jobs") + (groups.size === 1 ? `?text=${[...groups][0]}` : ""));
}

interface Submission {
  sending: Sending | undefined;
  failure: ApiError | undefined;
  forget: () => void;
  send: (order: Order) => Promise<void>;
}

/** Send an order until it is answered. The same order keeps its id until it is. */
function useSubmission(draft: Draft, setDraft: SetDraft, route: (url: string) => void): Submission {
  const [sending, setSending] = useState<Sending>();
  const [failure, setFailure] = useState<ApiError>();
  const send = async (order: Order): Promise<void> => {
    const sent = idFor(order, draft.sent);
    const abort = new AbortController();
    setDraft((d) => ({ ...d, sent }));
    setFailure(undefined);
    setSending({ abort, waiting: "" });
    try {
      const reply = await untilAnswered(
        () => sendOrder(order, sent.reqId, abort.signal),
        abort.signal,
        (error) => setSending({ abort, waiting: sentence(error.message) }),
      );
      setDraft((d) => ({ ...d, sent: null }));
      follow(reply, route);
    } catch (error) {
      if (abort.signal.aborted) notify(UNKNOWN, true);
      else if (error instanceof ApiError) setFailure(error);
      else throw error;
    } finally {
      setSending(undefined);
    }
  };
  return { sending, failure, forget: () => setFailure(undefined), send };
}

/** Check a text a moment after its last change. */
function useCheck(text: string, noImage: boolean): ReturnType<typeof useRemote<Check>> {
  const key = JSON.stringify([text, noImage]);
  const [settled, setSettled] = useState(key);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(key), TYPING_MS);
    return () => clearTimeout(timer);
  }, [key]);
  const remote = useRemote<Check>(
    settled,
    async (signal) => {
      const [checked, without] = JSON.parse(settled) as [string, boolean];
      if (checked === "") return { openpai: 0, problems: [], warnings: [], jobs: [] };
      return data<Check>("job-check", { text: checked, noImage: without, plan: true }, signal);
    },
    true,
  );
  return { ...remote, loading: remote.loading || settled !== key };
}
