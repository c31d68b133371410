/**
 * The form of a job: its description (docs/jobs.md) as data, and the field of each problem. Pure.
 * Nothing is validated here: the supervisor reports the problems of the description.
 */

import type { Problem } from "./problem.ts";

/** A kind of tasks of a job with roles. failed, succeeded: how many ended tasks decide the attempt. */
export interface Role {
  name: string;
  command: string;
  tasks: string;
  cores: string;
  memory: string;
  gpus: string;
  image: string;
  failed: string;
  succeeded: string;
}
export type RoleField = keyof Role;

interface Texts {
  name: string;
  command: string;
  queue: string;
  driver: string;
  cluster: string;
  partition: string;
  cores: string;
  memory: string;
  gpus: string;
  time: string;
  image: string;
  array: string;
  env: string;
  retries: string;
  platform: string;
  tags: string;
}
/** roles: of a job with several kinds of tasks, in place of command, cores, memory, GPUs and image. */
export interface Form extends Texts {
  roles: Role[];
}
/** A field of the job, or of the role with this number. */
export type Field = keyof Texts | `${number} ${RoleField}`;

export const EMPTY_ROLE: Role = {
  name: "",
  command: "",
  tasks: "",
  cores: "",
  memory: "",
  gpus: "",
  image: "",
  failed: "",
  succeeded: "",
};

export const EMPTY: Form = {
  name: "",
  command: "",
  queue: "",
  driver: "",
  cluster: "",
  partition: "",
  cores: "",
  memory: "",
  gpus: "",
  time: "",
  image: "",
  array: "",
  env: "",
  retries: "",
  platform: "",
  tags: "",
  roles: [],
};

export interface Driver {
  name: string;
  containers: boolean;
  cluster: boolean;
  hosts: number;
  largest: { cpu: number; memory: number; gpu: number } | null;
  gpuTypes: string[];
}

export interface Partition {
  name: string;
  default?: boolean;
  up?: boolean;
  maxNodes?: number | null;
  coresPerNode?: number | null;
  memoryMbPerNode?: number | null;
  gpusPerNode?: number | null;
  timeLimitSecs?: number | null;
}

export interface Cluster {
  cluster: string;
  state: string;
  partitions: Partition[] | null;
}

/** The answer to `job-options`. Times are seconds, memory is MiB. */
export interface Options {
  maxTextBytes: number;
  maxTags: number;
  maxRuns: number;
  drivers: Driver[];
  queues: { name: string; share: number; borrow: boolean }[];
  queue: string;
  limits: Record<string, number>;
  timeLimit: number | null;
  queueLimit: number | null;
  clusters: Cluster[];
}

/** The first driver of the site is its default. */
export const driverOf = (form: Form, options: Options | undefined): Driver | undefined =>
  options?.drivers.find((d) => d.name === form.driver) ?? options?.drivers[0];

export const clusterOf = (form: Form, options: Options | undefined): Cluster | undefined =>
  options?.clusters.find((c) => c.cluster === form.cluster) ?? options?.clusters[0];

/** Return a number where a text is one; other texts are for the supervisor to refuse. */
const value = (text: string): string | number => {
  const trimmed = text.trim();
  return /^\d{1,15}$/.test(trimmed) ? Number(trimmed) : trimmed;
};

const given = (fields: Record<string, string>): Record<string, string | number> =>
  Object.fromEntries(
    Object.entries(fields)
      .filter(([, text]) => text.trim() !== "")
      .map(([name, text]) => [name, value(text)]),
  );

/** Return the name for a job without one: the program of its command. */
export function suggestedName(command: string): string {
  const line = command.split("\n").find((l) => l.trim() !== "" && !l.trim().startsWith("#")) ?? "";
  const word = line.trim().split(/\s+/)[0] ?? "";
  const name = (word.split("/").pop() ?? "").replaceAll(/[^A-Za-z0-9._-]+/g, "");
  return name.slice(0, 64) || "job";
}

/** Return the variables of lines `NAME=value`. */
export function variables(text: string): Record<string, string> {
  const found: Record<string, string> = {};
  for (const line of text.split("\n")) {
    if (line.trim() === "") continue;
    const at = line.indexOf("=");
    const name = (at < 0 ? line : line.slice(0, at)).trim();
    found[name] = at < 0 ? "" : line.slice(at + 1);
  }
  return found;
}

export const words = (text: string): string[] => text.split(/[\s,]+/).filter((word) => word !== "");

/** Return the form with a further role; the fields of the job become its first one. */
export function withRole(form: Form): Role[] {
  const { command, cores, memory, gpus, image } = form;
  const first = { ...EMPTY_ROLE, name: "main", command, cores, memory, gpus, image };
  const roles = form.roles.length ? form.roles : [first];
  return [...roles, { ...EMPTY_ROLE, name: roles.length === 1 ? "worker" : "" }];
}

/** Return the change that removes a role; the last one becomes the fields of the job again. */
export function withoutRole(form: Form, index: number): Partial<Form> {
  const roles = form.roles.filter((_, n) => n !== index);
  if (roles.length > 0) return { roles };
  const { command, cores, memory, gpus, image } = form.roles[index] ?? EMPTY_ROLE;
  return { roles, command, cores, memory, gpus, image };
}

/** Return the keys of the roles in the description. One that is there already gets an invalid name. */
export function roleKeys(roles: Role[]): string[] {
  const found: string[] = [];
  for (const { name } of roles) {
    const key = name.trim();
    found.push(found.includes(key) ? `${key}~${found.length + 1}` : key);
  }
  return found;
}

/** Return the commands of all kinds of tasks. */
export const commandsOf = (form: Form): string[] =>
  form.roles.length ? form.roles.map((role) => role.command) : [form.command];

const never = (text: string): string | number | null =>
  /^(never|null)$/i.test(text.trim()) ? null : value(text);

function roleOf(role: Role): Record<string, unknown> {
  const { tasks, cores, memory, gpus, image, failed, succeeded } = role;
  return {
    ...given({ tasks, cpu: cores, memory, gpu: gpus, image }),
    ...(failed.trim() ? { minFailed: never(failed) } : {}),
    ...(succeeded.trim() ? { minSucceeded: never(succeeded) } : {}),
    command: role.command,
  };
}

/** Return commands and resources of a job, in roles if it has or needs them. */
function tasksOf(form: Form, onCluster: boolean): Record<string, unknown> {
  const { cores, memory, gpus, image, command, roles } = form;
  if (roles.length) {
    const keys = roleKeys(roles);
    return { roles: Object.fromEntries(roles.map((role, n) => [keys[n], roleOf(role)])) };
  }
  const task = onCluster ? {} : given({ cpu: cores, memory, gpu: gpus, image });
  return Object.keys(task).length ? { roles: { main: { ...task, command } } } : { command };
}

function retryOf({ retries, platform }: Form): Record<string, unknown> {
  // a command line has no retries, so that they are wanted by name
  if (!retries.trim() && !platform.trim()) return { count: 0, platform: 0 };
  return { count: value(retries.trim() || "0"), ...given({ platform }) };
}

/** Return the job description of a form. */
export function descriptionOf(form: Form, options: Options | undefined): Record<string, unknown> {
  const onCluster = driverOf(form, options)?.cluster === true;
  const { cores, memory, gpus, cluster, partition } = form;
  const size = form.roles.length ? {} : { cores, memory, gpus };
  const batch = onCluster ? given({ cluster, partition, ...size }) : {};
  const env = variables(form.env);
  const [command = ""] = commandsOf(form);
  return {
    name: form.name.trim() || suggestedName(command),
    ...given({ driver: form.driver, queue: form.queue, timeLimit: form.time }),
    ...(form.array.trim() ? { array: form.array.trim() } : {}),
    ...(Object.keys(env).length ? { env } : {}),
    retry: retryOf(form),
    ...(Object.keys(batch).length ? { batch } : {}),
    ...tasksOf(form, onCluster),
  };
}

const FIELDS: [RegExp, Field][] = [
  [/^name/, "name"],
  [/^(roles\.main\.)?command/, "command"],
  [/^queue/, "queue"],
  [/^driver/, "driver"],
  [/^batch\.cluster/, "cluster"],
  [/^roles\.main\.cpu|^batch\.cores/, "cores"],
  [/^roles\.main\.memory|^batch\.memory/, "memory"],
  [/^roles\.main\.gpu|^batch\.gpus/, "gpus"],
  [/^roles\.main\.image/, "image"],
  [/^batch/, "partition"],
  [/^roles/, "cores"],
  [/^timeLimit/, "time"],
  [/^array/, "array"],
  [/^env/, "env"],
  [/^retry\.platform/, "platform"],
  [/^retry/, "retries"],
];
const ROLE_FIELDS: Record<string, RoleField> = {
  command: "command",
  tasks: "tasks",
  cpu: "cores",
  memory: "memory",
  gpu: "gpus",
  image: "image",
  minFailed: "failed",
  minSucceeded: "succeeded",
};

/** Return the field that a problem of the description concerns; undefined: the whole job. */
export function fieldOf(problem: Problem, roles: Role[] = []): Field | undefined {
  const path = problem.path ?? "";
  const at = roleKeys(roles).findIndex(
    (key) => path === `roles.${key}` || path.startsWith(`roles.${key}.`),
  );
  if (at >= 0) {
    const key = path.slice(`roles.${roleKeys(roles)[at]}.`.length).split(/\W/)[0] ?? "";
    return `${at} ${ROLE_FIELDS[key] ?? "name"}`;
  }
  if (roles.length && path.startsWith("roles")) return "0 name";
  return FIELDS.find(([pattern]) => pattern.test(path))?.[1];
}

export function byField(
  problems: Problem[],
  roles: Role[] = [],
): Map<Field | undefined, Problem[]> {
  const found = new Map<Field | undefined, Problem[]>();
  for (const problem of problems) {
    const field = fieldOf(problem, roles);
    found.set(field, [...(found.get(field) ?? []), problem]);
  }
  return found;
}
