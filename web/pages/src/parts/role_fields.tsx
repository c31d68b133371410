/** The fields of one role of a job. */

import type { JSX } from "preact";
import { type Hints, ROLE_HINTS } from "../text/form_hints.ts";
import { driverOf, EMPTY_ROLE, type RoleField, withoutRole } from "../text/job_form.ts";
import { type About, type FieldsProps, Lines, TextField } from "./form_controls.tsx";

export function RoleFields(props: FieldsProps & { index: number; hints: Hints }): JSX.Element {
  const { form, index, problems, onChange } = props;
  const role = form.roles[index] ?? EMPTY_ROLE;
  const title = role.name.trim() || `number ${index + 1}`;
  const about = (name: RoleField): About => ({
    id: `role-${index}-${name}`,
    hint: ROLE_HINTS[name] ?? (name in form ? props.hints[name as keyof Hints] : undefined),
    problems: problems.get(`${index} ${name}`) ?? [],
    value: role[name],
    onInput: (value) =>
      onChange({ roles: form.roles.map((r, n) => (n === index ? { ...r, [name]: value } : r)) }),
  });
  return (
    <fieldset class="role field-wide">
      <legend>Role {title}</legend>
      <div class="job-fields">
        <Lines {...about("command")} label="Command" rows={2} placeholder="python3 worker.py" />
        <TextField {...about("name")} label="Role name" />
        <TextField {...about("tasks")} label="Tasks" placeholder="1" />
        <TextField {...about("cores")} label="Cores each" />
        <TextField {...about("memory")} label="Memory each" />
        <TextField {...about("gpus")} label="GPUs each" />
        {driverOf(form, props.options)?.containers && (
          <TextField {...about("image")} label="Image" placeholder="python:3.11" />
        )}
        <TextField {...about("failed")} label="Fails after" placeholder="1" />
        <TextField {...about("succeeded")} label="Completes after" placeholder="all" />
      </div>
      <button type="button" onClick={() => onChange(withoutRole(form, index))}>
        Remove role {title}
      </button>
    </fieldset>
  );
}
