/** The fields of a job and of its roles, each with its default, its limit and its problems. */

import type { JSX } from "preact";
import { hints } from "../text/form_hints.ts";
import { clusterOf, driverOf, type Form, withRole } from "../text/job_form.ts";
import {
  type About,
  Choice,
  type FieldsProps,
  Lines,
  OpenScript,
  TextField,
} from "./form_controls.tsx";
import { RoleFields } from "./role_fields.tsx";

type TextName = Exclude<keyof Form, "roles">;

export function JobFields(props: FieldsProps): JSX.Element {
  const { form, options, problems, onChange } = props;
  const said = hints(form, options);
  const about = (name: TextName): About => ({
    id: `job-${name}`,
    hint: said[name],
    problems: problems.get(name) ?? [],
    value: form[name],
    onInput: (value) => onChange({ [name]: value }),
  });
  const hasRoles = form.roles.length > 0;
  return (
    <div class="job-fields">
      {!hasRoles && (
        <Lines
          {...about("command")}
          label="Command or script"
          rows={4}
          placeholder="python3 train.py --rate 0.1"
          beside={<OpenScript onScript={props.onScript} />}
        />
      )}
      {form.roles.map((_, n) => (
        <RoleFields key={n} {...props} index={n} hints={said} />
      ))}
      {hasRoles && <MoreRoles {...props} />}
      <TextField {...about("name")} label="Name" />
      <Places {...props} about={about} />
      {!hasRoles && <Resources {...props} about={about} />}
      <TextField {...about("time")} label="Longest run time" />
      <TextField {...about("array")} label="Array" />
      <TextField {...about("retries")} label="Retries" />
      {(hasRoles || form.platform) && <TextField {...about("platform")} label="Platform retries" />}
      <TextField {...about("tags")} label="Tags" />
      <Lines {...about("env")} label="Environment" rows={2} placeholder="STEPS=100" />
      {!hasRoles && <MoreRoles {...props} />}
    </div>
  );
}

function MoreRoles({ form, onChange }: FieldsProps): JSX.Element {
  return (
    <div class="field-wide roles-more">
      <button type="button" onClick={() => onChange({ roles: withRole(form) })}>
        Add a role
      </button>
      <p class="soft hint">
        {form.roles.length
          ? "All tasks of all roles start together."
          : "For several tasks that work together: each role has a command and a number of tasks."}
      </p>
    </div>
  );
}

type AboutOf = { about: (name: TextName) => About };

/** Queue, driver, cluster and partition. */
function Places({ form, options, about }: FieldsProps & AboutOf): JSX.Element {
  const driver = driverOf(form, options);
  const cluster = driver?.cluster ? clusterOf(form, options) : undefined;
  const drivers = options?.drivers ?? [];
  const clusters = options?.clusters ?? [];
  return (
    <>
      <Choice
        {...about("queue")}
        label="Queue"
        usual="my default"
        values={options?.queues.map((q) => q.name) ?? []}
      />
      {drivers.length > 1 && (
        <Choice
          {...about("driver")}
          label="Driver"
          usual="the site's default"
          values={drivers.map((d) => d.name)}
        />
      )}
      {driver?.cluster && clusters.length > 1 && (
        <Choice
          {...about("cluster")}
          label="Cluster"
          usual="the first one"
          values={clusters.map((c) => c.cluster)}
        />
      )}
      {driver?.cluster &&
        (cluster?.partitions ? (
          <Choice
            {...about("partition")}
            label="Partition"
            usual="the cluster's default"
            values={cluster.partitions.filter((p) => p.up !== false).map((p) => p.name)}
          />
        ) : (
          <TextField
            {...about("partition")}
            label="Partition"
            placeholder="the cluster's default"
          />
        ))}
    </>
  );
}

function Resources({ form, options, about }: FieldsProps & AboutOf): JSX.Element {
  return (
    <>
      <TextField {...about("cores")} label="Cores" />
      <TextField {...about("memory")} label="Memory" />
      <TextField {...about("gpus")} label="GPUs" />
      {driverOf(form, options)?.containers && (
        <TextField {...about("image")} label="Image" placeholder="python:3.11" />
      )}
    </>
  );
}
