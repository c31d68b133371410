/** The fields of a job, each with its default, its limit and its problems. */

import type { ComponentChildren, JSX } from "preact";
import { hints } from "../text/form_hints.ts";
import { sentence } from "../text/format.ts";
import { clusterOf, driverOf, type Field, type Form, type Options } from "../text/job_form.ts";
import type { Problem } from "../text/problem.ts";

interface FieldsProps {
  form: Form;
  options: Options | undefined;
  problems: Map<Field | undefined, Problem[]>;
  onChange: (change: Partial<Form>) => void;
  onScript: (file: File) => void;
}

export function JobFields(props: FieldsProps): JSX.Element {
  const { form, options, problems, onChange } = props;
  const driver = driverOf(form, options);
  const cluster = driver?.cluster ? clusterOf(form, options) : undefined;
  const said = hints(form, options);
  const field = (name: Field): RowProps => ({
    name,
    hint: said[name],
    problems: problems.get(name) ?? [],
  });
  const text = (name: Field, label: string, placeholder = ""): JSX.Element => (
    <Text
      {...field(name)}
      label={label}
      placeholder={placeholder}
      form={form}
      onChange={onChange}
    />
  );
  const choice = (name: Field, label: string, usual: string, values: string[]): JSX.Element => (
    <Choice
      {...field(name)}
      label={label}
      usual={usual}
      values={values}
      form={form}
      onChange={onChange}
    />
  );
  return (
    <div class="job-fields">
      <Row
        {...field("command")}
        label="Command or script"
        wide
        beside={<OpenScript onScript={props.onScript} />}
      >
        <textarea
          id="job-command"
          rows={4}
          spellcheck={false}
          autocapitalize="off"
          placeholder={"python3 train.py --rate 0.1"}
          aria-describedby="job-command-hint"
          aria-invalid={problems.has("command")}
          value={form.command}
          onInput={(e) => onChange({ command: e.currentTarget.value })}
        />
      </Row>
      {text("name", "Name")}
      {choice("queue", "Queue", "my default", options?.queues.map((q) => q.name) ?? [])}
      {(options?.drivers.length ?? 0) > 1 &&
        choice("driver", "Driver", "the site's default", options?.drivers.map((d) => d.name) ?? [])}
      {driver?.cluster &&
        (options?.clusters.length ?? 0) > 1 &&
        choice(
          "cluster",
          "Cluster",
          "the first one",
          options?.clusters.map((c) => c.cluster) ?? [],
        )}
      {driver?.cluster &&
        (cluster?.partitions
          ? choice(
              "partition",
              "Partition",
              "the cluster's default",
              cluster.partitions.filter((p) => p.up !== false).map((p) => p.name),
            )
          : text("partition", "Partition", "the cluster's default"))}
      {text("cores", "Cores")}
      {text("memory", "Memory")}
      {text("gpus", "GPUs")}
      {text("time", "Longest run time")}
      {driver?.containers && text("image", "Image", "python:3.11")}
      {text("array", "Array")}
      {text("retries", "Retries")}
      {text("tags", "Tags")}
      <Row {...field("env")} label="Environment" wide>
        <textarea
          id="job-env"
          rows={2}
          spellcheck={false}
          autocapitalize="off"
          placeholder="STEPS=100"
          aria-describedby="job-env-hint"
          aria-invalid={problems.has("env")}
          value={form.env}
          onInput={(e) => onChange({ env: e.currentTarget.value })}
        />
      </Row>
    </div>
  );
}

interface RowProps {
  name: Field;
  hint: string | undefined;
  problems: Problem[];
}

type ControlProps = RowProps & {
  label: string;
  form: Form;
  onChange: (change: Partial<Form>) => void;
};

function Row(
  props: RowProps & {
    label: string;
    wide?: boolean;
    beside?: JSX.Element;
    children: ComponentChildren;
  },
): JSX.Element {
  const id = `job-${props.name}`;
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

function Text(props: ControlProps & { placeholder: string }): JSX.Element {
  const { name, form } = props;
  return (
    <Row {...props}>
      <input
        id={`job-${name}`}
        autocomplete="off"
        spellcheck={false}
        placeholder={props.placeholder}
        aria-describedby={`job-${name}-hint`}
        aria-invalid={props.problems.length > 0}
        value={form[name]}
        onInput={(e) => props.onChange({ [name]: e.currentTarget.value })}
      />
    </Row>
  );
}

function Choice(props: ControlProps & { usual: string; values: string[] }): JSX.Element {
  const { name, form, values } = props;
  const all = form[name] && !values.includes(form[name]) ? [...values, form[name]] : values;
  return (
    <Row {...props}>
      <select
        id={`job-${name}`}
        aria-describedby={`job-${name}-hint`}
        aria-invalid={props.problems.length > 0}
        value={form[name]}
        onChange={(e) => props.onChange({ [name]: e.currentTarget.value })}
      >
        <option value="">{props.usual}</option>
        {all.map((value) => (
          <option value={value} key={value}>
            {value}
          </option>
        ))}
      </select>
    </Row>
  );
}

function OpenScript({ onScript }: { onScript: (file: File) => void }): JSX.Element {
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
