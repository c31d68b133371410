/**
 * The form of a job: its description (docs/jobs.md) as data, and the field of each problem. Pure.
 * Nothing is validated here: the supervisor reports the problems of the description.
 */

import type { Problem } from "./problem.ts";

export interface Form {
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
  tags: string;
}
export type Field = keyof Form;

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
  tags: "",
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

/** Return the job description of a form. */
export function descriptionOf(form: Form, options: Options | undefined): Record<string, unknown> {
  const onCluster = driverOf(form, options)?.cluster === true;
  const { cores, memory, gpus, image, cluster, partition } = form;
  const batch = onCluster ? given({ cluster, partition, cores, memory, gpus }) : {};
  const task = onCluster ? {} : given({ cpu: cores, memory, gpu: gpus, image });
  const env = variables(form.env);
  const { command } = form;
  return {
    name: form.name.trim() || suggestedName(command),
    ...given({ driver: form.driver, queue: form.queue, timeLimit: form.time }),
    ...(form.array.trim() ? { array: form.array.trim() } : {}),
    ...(Object.keys(env).length ? { env } : {}),
    // a command line has no retries, so that they are wanted by name
    retry: form.retries.trim() ? { count: value(form.retries) } : { count: 0, platform: 0 },
    ...(Object.keys(batch).length ? { batch } : {}),
    ...(Object.keys(task).length ? { roles: { main: { ...task, command } } } : { command }),
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
  [/^retry/, "retries"],
];

/** Return the field that a problem of the description concerns; undefined: the whole job. */
export const fieldOf = (problem: Problem): Field | undefined =>
  FIELDS.find(([pattern]) => pattern.test(problem.path ?? ""))?.[1];

export function byField(problems: Problem[]): Map<Field | undefined, Problem[]> {
  const found = new Map<Field | undefined, Problem[]>();
  for (const problem of problems) {
    const field = fieldOf(problem);
    found.set(field, [...(found.get(field) ?? []), problem]);
  }
  return found;
}
