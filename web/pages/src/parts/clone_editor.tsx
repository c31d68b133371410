/** The form of "Clone and edit": what may change most often, and all keys as JSON. */

import type { JSX } from "preact";
import { useEffect, useId } from "preact/hooks";
import { useLocation } from "preact-iso";
import { beginEditing, discard, edit, editing, editText, submitClone } from "../clone.ts";
import { jobPath } from "../site.ts";
import {
  type CloneForm,
  type DefinitionReply,
  otherProblems,
  pathsOf,
  problemsOf,
  type RoleForm,
} from "../text/definition.ts";
import { sentence } from "../text/format.ts";
import { formatView, type JobView } from "../text/job_view.ts";
import type { Problem } from "../text/problem.ts";
import { Notes } from "./definition_notes.tsx";
import { notify } from "./frame.tsx";
import { ErrorMessage } from "./messages.tsx";

export function CloneEditor(props: {
  jid: string;
  reply: DefinitionReply;
  view: JobView;
}): JSX.Element | null {
  const { jid, reply, view } = props;
  const { route } = useLocation();
  useEffect(() => beginEditing(jid, reply), [jid, reply]);
  const now = editing.value;
  if (now?.jid !== jid) return null;
  const { form, problems } = now;
  const back = jobPath(jid) + formatView({ ...view, edit: false });
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    const made = await submitClone();
    if (made) {
      notify("The new job is submitted.");
      route(jobPath(made));
    } else {
      document.querySelector<HTMLElement>(".clone [aria-invalid=true]")?.focus();
    }
  };
  const others = otherProblems(problems, pathsOf(form, reply.app));
  return (
    <form class="pad clone" onSubmit={submit} noValidate>
      <h2>New job from this one</h2>
      <Notes reply={reply} />
      {now.error && <ErrorMessage error={now.error} />}
      {now.error?.isSignedOut && (
        <p class="soft">The job is not submitted. What you typed is kept in this tab.</p>
      )}
      {problems.length > 0 && (
        <div class="message error-message" role="alert">
          <p>
            <strong>
              {problems.length === 1
                ? "There is a problem."
                : `There are ${problems.length} problems.`}
            </strong>{" "}
            Nothing was submitted.
          </p>
          {others.length > 0 && (
            <ul>
              {others.map((p) => (
                <li key={p.path + p.problem}>
                  {p.path && <code>{p.path}</code>} {problemText(p)}
                </li>
              ))}
            </ul>
          )}
        </div>
      )}
      {form.text === null ? (
        <Fields form={form} app={reply.app} problems={problems} />
      ) : (
        <Field
          label="All keys, as JSON"
          path="text"
          problems={[]}
          value={form.text}
          lines={22}
          onInput={(text) => edit({ text })}
        />
      )}
      {now.partly && (
        <p class="soft hint">
          Values that look like secrets are not kept when this page is reloaded.
        </p>
      )}
      <div class="buttons">
        <button type="submit" class="main" disabled={now.sending}>
          {now.sending ? "Submitting …" : "Submit the new job"}
        </button>
        <button type="button" onClick={() => editText(form.text === null)}>
          {form.text === null ? "Edit all keys as JSON" : "Back to the form"}
        </button>
        <button
          type="button"
          onClick={() => {
            discard();
            route(back);
          }}
        >
          Discard
        </button>
      </div>
    </form>
  );
}

const problemText = (p: Problem): string =>
  sentence(p.problem) + (p.right ? ` Right is: ${p.right}.` : "");

function Fields(props: { form: CloneForm; app: boolean; problems: Problem[] }): JSX.Element {
  const { form, app, problems } = props;
  const field = (
    label: string,
    path: string,
    key: "name" | "timeLimit" | "queue" | "priority",
  ): JSX.Element => (
    <Field
      label={label}
      path={path}
      problems={problems}
      value={form[key]}
      onInput={(value) => edit({ [key]: value })}
    />
  );
  return (
    <>
      <div class="clone-row">
        {field("Name", app ? "simName" : "name", "name")}
        {field("Time limit (s, or 1h)", app ? "timeLimitSecs" : "timeLimit", "timeLimit")}
        {field("Queue", "queue", "queue")}
        {field("Priority", "priority", "priority")}
      </div>
      {form.roles.map((role, n) => (
        <RoleFields
          key={role.role}
          role={role}
          problems={problems}
          onChange={(change) =>
            edit({ roles: form.roles.map((r, m) => (m === n ? { ...r, ...change } : r)) })
          }
        />
      ))}
      {app && (
        <Field
          label="Inputs, as JSON"
          path="data"
          problems={problems}
          value={form.data}
          lines={12}
          onInput={(value) => edit({ data: value })}
        />
      )}
      <Environment form={form} problems={problems} />
    </>
  );
}

function RoleFields(props: {
  role: RoleForm;
  problems: Problem[];
  onChange: (change: Partial<RoleForm>) => void;
}): JSX.Element {
  const { role, problems, onChange } = props;
  const path = (key: string): string => (role.role ? `roles.${role.role}.${key}` : key);
  const field = (label: string, key: Exclude<keyof RoleForm, "role">): JSX.Element => (
    <Field
      label={label}
      path={path(key)}
      problems={problems}
      value={role[key]}
      {...(key === "command" ? { lines: Math.min(12, role[key].split("\n").length + 1) } : {})}
      onInput={(value) => onChange({ [key]: value })}
    />
  );
  return (
    <fieldset>
      {role.role && <legend>Role {role.role}</legend>}
      {field("Command", "command")}
      {role.role && (
        <div class="clone-row">
          {field("Tasks", "tasks")}
          {field("Cores per task", "cpu")}
          {field("Memory per task (MiB, or 2GB)", "memory")}
          {field("GPUs per task", "gpu")}
          {field("Image", "image")}
        </div>
      )}
    </fieldset>
  );
}

function Environment({ form, problems }: { form: CloneForm; problems: Problem[] }): JSX.Element {
  const set = (n: number, pair: [string, string]): void =>
    edit({ env: form.env.map((e, m) => (m === n ? pair : e)) });
  return (
    <fieldset>
      <legend>Environment</legend>
      {form.env.map(([name, value], n) => (
        <div class="clone-env" key={n}>
          <Field
            label={`Name of variable ${n + 1}`}
            hidden
            path=""
            problems={[]}
            value={name}
            onInput={(text) => set(n, [text, value])}
          />
          <Field
            label={`Value of ${name || `variable ${n + 1}`}`}
            hidden
            path={`env.${name}`}
            problems={problems}
            value={value}
            onInput={(text) => set(n, [name, text])}
          />
          <button
            type="button"
            aria-label={`Remove ${name || `variable ${n + 1}`}`}
            onClick={() => edit({ env: form.env.filter((_, m) => m !== n) })}
          >
            Remove
          </button>
        </div>
      ))}
      {problems
        .filter((p) => p.path === "env")
        .map((p) => (
          <p class="field-problem" key={p.problem}>
            {problemText(p)}
          </p>
        ))}
      <button type="button" onClick={() => edit({ env: [...form.env, ["", ""]] })}>
        Add a variable
      </button>
    </fieldset>
  );
}

function Field(props: {
  label: string;
  path: string;
  problems: Problem[];
  value: string;
  onInput: (value: string) => void;
  lines?: number;
  hidden?: boolean;
}): JSX.Element {
  const id = useId();
  const found = props.path ? problemsOf(props.problems, props.path) : [];
  const common = {
    id,
    value: props.value,
    spellcheck: false,
    autocomplete: "off",
    "aria-invalid": found.length > 0,
    ...(found.length ? { "aria-describedby": `${id}-problem` } : {}),
  };
  return (
    <div class="clone-field">
      <label for={id} class={props.hidden ? "hidden" : ""}>
        {props.label}
      </label>
      {props.lines ? (
        <textarea
          {...common}
          class="mono"
          rows={props.lines}
          onInput={(e) => props.onInput(e.currentTarget.value)}
        />
      ) : (
        <input {...common} onInput={(e) => props.onInput(e.currentTarget.value)} />
      )}
      {found.length > 0 && (
        <p class="field-problem" id={`${id}-problem`}>
          {found.map((p) => problemText(p)).join(" ")}
        </p>
      )}
    </div>
  );
}
