/** Controls of the form of a new job: each with its label, its hint and its problems. */

import type { ComponentChildren, JSX } from "preact";
import { sentence } from "../text/format.ts";
import type { Field, Form, Options } from "../text/job_form.ts";
import type { Problem } from "../text/problem.ts";

export interface FieldsProps {
  form: Form;
  options: Options | undefined;
  problems: Map<Field | undefined, Problem[]>;
  onChange: (change: Partial<Form>) => void;
  onScript: (file: File) => void;
}

export interface About {
  id: string;
  hint: string | undefined;
  problems: Problem[];
  value: string;
  onInput: (value: string) => void;
}

type ControlProps = About & { label: string };

function Row(
  props: ControlProps & { wide?: boolean; beside?: JSX.Element; children: ComponentChildren },
): JSX.Element {
  const { id } = props;
  return (
    <div class={props.wide ? "field field-wide" : "field"}>
      <div class="field-head">
        <label for={id}>{props.label}</label>
        {props.beside}
      </div>
      {props.children}
      <div id={`${id}-hint`} class="hint">
        {props.problems.map((p) => (
          <p class="wrong" key={p.problem}>
            {sentence(p.problem)} {sentence(`right: ${p.right}`)}
          </p>
        ))}
        {props.hint && props.problems.length === 0 && <p class="soft">{props.hint}</p>}
      </div>
    </div>
  );
}

const described = (props: About) => ({
  id: props.id,
  "aria-describedby": `${props.id}-hint`,
  "aria-invalid": props.problems.length > 0,
  value: props.value,
});

export function TextField(props: ControlProps & { placeholder?: string }): JSX.Element {
  return (
    <Row {...props}>
      <input
        {...described(props)}
        autocomplete="off"
        spellcheck={false}
        placeholder={props.placeholder ?? ""}
        onInput={(e) => props.onInput(e.currentTarget.value)}
      />
    </Row>
  );
}

export function Lines(
  props: ControlProps & { rows: number; placeholder: string; beside?: JSX.Element },
): JSX.Element {
  return (
    <Row {...props} wide>
      <textarea
        {...described(props)}
        rows={props.rows}
        spellcheck={false}
        autocapitalize="off"
        placeholder={props.placeholder}
        onInput={(e) => props.onInput(e.currentTarget.value)}
      />
    </Row>
  );
}

export function Choice(props: ControlProps & { usual: string; values: string[] }): JSX.Element {
  const { value, values } = props;
  const all = value && !values.includes(value) ? [...values, value] : values;
  return (
    <Row {...props}>
      <select {...described(props)} onChange={(e) => props.onInput(e.currentTarget.value)}>
        <option value="">{props.usual}</option>
        {all.map((one) => (
          <option value={one} key={one}>
            {one}
          </option>
        ))}
      </select>
    </Row>
  );
}

export function OpenScript({ onScript }: { onScript: (file: File) => void }): JSX.Element {
  return (
    <label class="button file-button">
      Open a script …
      <input
        type="file"
        class="hidden"
        onChange={(e) => {
          const file = e.currentTarget.files?.[0];
          if (file) onScript(file);
          e.currentTarget.value = "";
        }}
      />
    </label>
  );
}
