/** The definition of a job as readable groups, and as a form that makes a new job from it. Pure. */

import type { Problem } from "./problem.ts";
import { keptValue, withoutSecrets } from "./secrets.ts";

export type Values = Record<string, unknown>;

export interface DefinitionReply {
  definition: Values;
  /** The run of an app: the definition has the fields of its request. */
  app: boolean;
  notes: string[];
  withheld: { name: string; where: string; reference: string }[];
}

export const isObject = (value: unknown): value is Values =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const object = (value: unknown): Values => (isObject(value) ? value : {});

/** Return words as one line of a shell. */
export const quoted = (words: unknown[]): string =>
  words
    .map(String)
    .map((w) => (/^[\w@%+=:,./-]+$/.test(w) ? w : `'${w.replaceAll("'", `'"'"'`)}'`))
    .join(" ");

/** Return a command as text: that of a shell is one already. */
export const commandText = (command: unknown): string =>
  Array.isArray(command) ? quoted(command) : typeof command === "string" ? command : "";

// ---- groups

export interface Group {
  title: string;
  rows: [string, string][];
}

const LABELS: Record<string, string> = {
  after: "Waits for",
  cpu: "Cores",
  computeModel: "Compute model",
  cores: "Cores per process",
  debug: "Hold failed tasks for",
  driver: "Driver",
  gpu: "GPUs",
  gpus: "GPUs per node",
  gpuType: "GPU type",
  grace: "Time to end after a cancel",
  graceSecs: "Time to end after a cancel",
  image: "Image",
  jobRunMode: "Kind",
  kind: "Kind",
  memory: "Memory",
  minFailed: "Fails with this many failed tasks",
  minSucceeded: "Succeeds with this many completed tasks",
  name: "Name",
  nodes: "Nodes",
  partition: "Partition",
  ports: "Ports",
  priority: "Priority",
  queue: "Queue",
  queueLimit: "Time limit in the queue",
  queueLimitSecs: "Time limit in the queue",
  retry: "Retries",
  shm: "Shared memory",
  simName: "Name",
  simulationType: "App",
  ssh: "SSH between tasks",
  tasks: "Tasks",
  timeLimit: "Time limit",
  timeLimitSecs: "Time limit",
  volumes: "Volumes",
};

const SECONDS = new Set(
  "debug grace graceSecs queueLimit queueLimitSecs timeLimit timeLimitSecs".split(" "),
);
const MEGABYTES = new Set(["memory", "shm"]);
/** Shown in groups of their own. */
const APART = new Set(["roles", "command", "env", "batch", "data", "clonedFrom"]);

const label = (key: string): string => LABELS[key] ?? key;

function valueText(key: string, value: unknown): string {
  if (typeof value === "number" && SECONDS.has(key)) return `${value.toLocaleString("en")} s`;
  if (typeof value === "number" && MEGABYTES.has(key)) return `${value.toLocaleString("en")} MiB`;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (key === "after" && Array.isArray(value))
    return value.map((a) => `${object(a).job} (${object(a).on})`).join(", ");
  if (key === "retry" && isObject(value)) return retryText(value);
  if (Array.isArray(value)) return value.map(String).join(", ");
  if (isObject(value))
    return Object.entries(value)
      .map(([k, v]) => `${k}: ${typeof v === "object" ? JSON.stringify(v) : v}`)
      .join(", ");
  return String(value);
}

/** Retries without a word are those of `Retry` in protocol/jobs/roles.py. */
function retryText(value: Values): string {
  const count = value.count ?? value.retryCount ?? 0;
  const platform = value.platform ?? value.maxPlatformRetries ?? 3;
  const times = (n: unknown): string => (n === -1 ? "without limit" : String(n));
  return `${times(count)} after failures of the program, ${times(platform)} of the platform`;
}

const rowsOf = (values: Values): [string, string][] =>
  Object.entries(values)
    .filter(([key]) => !APART.has(key))
    .map(([key, value]) => [label(key), valueText(key, value)]);

const WITHHELD = /@WITHHELD:[A-Za-z_][A-Za-z0-9_]*@/g;

/** Return a text with the places of values that look like secrets. */
export const masked = (text: string): string => text.replaceAll(WITHHELD, "(not shown)");

/** Return the groups of a definition, except commands. */
export function groups({ definition }: DefinitionReply): Group[] {
  const found: Group[] = [];
  for (const [name, role] of Object.entries(object(definition.roles)))
    found.push({ title: `Role ${name}`, rows: rowsOf(object(role)) });
  found.push({ title: "Cluster", rows: rowsOf(object(definition.batch)) });
  found.push({ title: "Placement and policies", rows: rowsOf(definition) });
  const variables = [
    ...Object.entries(object(definition.env)),
    ...Object.entries(object(definition.roles)).flatMap(([role, value]) =>
      Object.entries(object(object(value).env)).map(([k, v]) => [`${k} (${role})`, v] as const),
    ),
  ];
  found.push({ title: "Environment", rows: variables.map(([k, v]) => [k, masked(String(v))]) });
  return found.filter((g) => g.rows.length > 0);
}

/** Return the commands with their roles ("" for a job without roles). */
export function commands({ definition }: DefinitionReply): [string, string][] {
  const roles = Object.entries(object(definition.roles));
  if (roles.length === 0)
    return definition.command === undefined ? [] : [["", masked(commandText(definition.command))]];
  return roles.map(([name, role]) => [name, masked(commandText(object(role).command))]);
}

// ---- form

export interface RoleForm {
  /** "": the job has no roles. */
  role: string;
  command: string;
  tasks: string;
  cpu: string;
  memory: string;
  gpu: string;
  image: string;
}

export interface CloneForm {
  name: string;
  roles: RoleForm[];
  env: [string, string][];
  timeLimit: string;
  queue: string;
  priority: string;
  /** Inputs of an app as JSON. */
  data: string;
  /** The whole definition as JSON, if that is edited; else null. */
  text: string | null;
}

const ROLE_FIELDS = ["tasks", "cpu", "memory", "gpu", "image"] as const;

const areTexts = (value: unknown, keys: readonly string[]): value is Record<string, string> =>
  isObject(value) && keys.every((key) => typeof value[key] === "string");

/** Return whether a value is the form of a job, also one that an older page has kept. */
export const isCloneForm = (value: unknown): value is CloneForm =>
  areTexts(value, ["name", "timeLimit", "queue", "priority", "data"]) &&
  ["string", "object"].includes(typeof value.text) &&
  Array.isArray(value.roles) &&
  value.roles.every((role) => areTexts(role, ["role", "command", ...ROLE_FIELDS])) &&
  Array.isArray(value.env) &&
  value.env.every((pair) => Array.isArray(pair) && areTexts({ ...pair }, ["0", "1"]));

/** Return a form without values that look like secrets. */
export function keptForm(form: CloneForm): CloneForm {
  const roles = form.roles.map((role) => ({ ...role, command: withoutSecrets(role.command) }));
  const env = form.env.map(([name, value]): [string, string] => [name, keptValue(name, value)]);
  const text = form.text === null ? null : withoutSecrets(form.text);
  return { ...form, roles, env, text, data: withoutSecrets(form.data) };
}

const asText = (value: unknown): string =>
  value === undefined || value === null ? "" : String(value);

const json = (value: unknown): string => JSON.stringify(value, null, 2);

/** Return the form of a definition. */
export function formOf(definition: Values, app: boolean): CloneForm {
  const roles = Object.entries(object(definition.roles));
  const role = (name: string, values: Values): RoleForm => ({
    role: name,
    command: commandText(values.command),
    tasks: asText(values.tasks),
    cpu: asText(values.cpu),
    memory: asText(values.memory),
    gpu: asText(values.gpu),
    image: asText(values.image),
  });
  return {
    name: asText(app ? definition.simName : definition.name),
    roles: app
      ? []
      : roles.length
        ? roles.map(([name, values]) => role(name, object(values)))
        : [role("", definition)],
    env: Object.entries(object(definition.env)).map(([k, v]) => [k, String(v)]),
    timeLimit: asText(app ? definition.timeLimitSecs : definition.timeLimit),
    queue: asText(definition.queue),
    priority: asText(definition.priority),
    data: app ? json(definition.data) : "",
    text: null,
  };
}

/** Return a number if the text is one, so that the server sees what it expects. */
const plain = (text: string): unknown => {
  const trimmed = text.trim();
  return /^-?\d+(\.\d+)?$/.test(trimmed) ? Number(trimmed) : trimmed;
};

/** Set a value, or remove it if the text is empty. An unchanged text keeps its value. */
function put(values: Values, key: string, text: string): void {
  if (text === asText(values[key])) return;
  if (text.trim() === "") delete values[key];
  else values[key] = plain(text);
}

/** A text of JSON that is none. */
export class NotJson extends Error {
  constructor(readonly path: string) {
    super("it is not JSON");
  }
}

function parsed(text: string, path: string): Values {
  try {
    const value: unknown = JSON.parse(text);
    if (isObject(value)) return value;
  } catch {
    // reported below
  }
  throw new NotJson(path);
}

/** Return the definition with what was typed. Raises NotJson. */
export function definitionOf(original: Values, app: boolean, form: CloneForm): Values {
  if (form.text !== null) return parsed(form.text, "");
  const out = structuredClone(original);
  put(out, app ? "simName" : "name", form.name);
  put(out, app ? "timeLimitSecs" : "timeLimit", form.timeLimit);
  put(out, "queue", form.queue);
  put(out, "priority", form.priority);
  const env = Object.fromEntries(
    form.env.filter(([name]) => name.trim() !== "").map(([k, v]) => [k.trim(), v]),
  );
  if (Object.keys(env).length) out.env = env;
  else delete out.env;
  if (app) out.data = parsed(form.data, "data");
  for (const role of form.roles) {
    const values = role.role ? object(object(out.roles)[role.role]) : out;
    if (role.command !== commandText(values.command)) values.command = role.command;
    for (const key of ROLE_FIELDS) {
      if (role.role) put(values, key, role[key]);
    }
    if (!role.role) put(values, "image", role.image);
  }
  return out;
}

/** Return the problems of a field, and those of fields within it. */
export const problemsOf = (problems: Problem[], path: string): Problem[] =>
  problems.filter((p) => (p.path ?? "") === path || (p.path ?? "").startsWith(`${path}.`));

/** Return the paths of the fields of a form. */
export function pathsOf(form: CloneForm, app: boolean): string[] {
  if (form.text !== null) return [];
  const roles = form.roles.flatMap(({ role }) =>
    ["command", ...ROLE_FIELDS].map((key) => (role ? `roles.${role}.${key}` : key)),
  );
  const top = app ? ["simName", "timeLimitSecs", "data"] : ["name", "timeLimit"];
  return [...top, ...roles, "queue", "priority", "env"];
}

/** Return the problems that no field shows. */
export const otherProblems = (problems: Problem[], paths: string[]): Problem[] =>
  problems.filter((p) => !paths.some((path) => problemsOf([p], path).length > 0));
