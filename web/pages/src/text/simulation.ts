/** Stored simulations, their values, and addresses of their page. Pure. */

import type { AppInfo, Field, Model, Value, Values } from "./app_types.ts";

/** A simulation as its file has it. models: the values of the fields, for each model. */
export interface Simulation {
  name: string;
  model: string;
  models: Record<string, Values>;
}

/** What is stored now: tag is that of the file, which changes with it; "" if it is not known. */
export interface StoredSimulation {
  found: Simulation | undefined;
  tag: string;
}

/** The tag where there is no file. */
export const NO_FILE = "none";
export const NOT_STORED: StoredSimulation = { found: undefined, tag: NO_FILE };

/**
 * Return what is to be stored of a model's values after the file was changed elsewhere; undefined if these
 * values were changed there, too. base: what was stored when they were read.
 */
export function mergedWith(
  other: Simulation | undefined,
  base: Simulation,
  model: Model,
  values: Values,
): Simulation | undefined {
  if (!other) return undefined;
  const valuesOfModel = (simulation: Simulation): Values =>
    completed(model, simulation.models[model.name]);
  const theirs = valuesOfModel(other);
  if (!areEqual(theirs, valuesOfModel(base)) && !areEqual(theirs, values)) return undefined;
  return { ...other, model: model.name, models: { ...other.models, [model.name]: values } };
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const isValue = (value: unknown): value is Value =>
  ["string", "number", "boolean"].includes(typeof value);

/** Return the simulation of a file. What does not have the expected form is left out. */
export function parseSimulation(content: unknown): Simulation {
  const file = isObject(content) ? content : {};
  const models: Record<string, Values> = {};
  for (const [name, values] of Object.entries(isObject(file.models) ? file.models : {})) {
    if (isObject(values)) models[name] = valuesOf(values);
  }
  return {
    name: typeof file.name === "string" ? file.name.slice(0, 200) : "",
    model: typeof file.model === "string" ? file.model : "",
    models,
  };
}

export const valuesOf = (values: Record<string, unknown>): Values =>
  Object.fromEntries(Object.entries(values).filter((e): e is [string, Value] => isValue(e[1])));

/** Return the model that a page shows: the wanted one, or else the first one. */
export const modelOf = (app: AppInfo, ...wanted: string[]): Model | undefined =>
  wanted.flatMap((name) => app.models?.find((m) => m.name === name) ?? []).at(0) ?? app.models?.[0];

export const defaultsOf = (model: Model): Values =>
  Object.fromEntries(model.fields.map((f) => [f.name, f.default]));

/** Return the values of the model's fields: the given ones, where they have the right type. */
export function completed(model: Model, given: Values | undefined): Values {
  const values = { ...given };
  for (const field of model.fields) {
    if (typeof values[field.name] !== typeof field.default) values[field.name] = field.default;
  }
  return values;
}

/** Return whether both have the same values; "" is as good as none. */
export function areEqual(one: Values, two: Values): boolean {
  const names = new Set([...Object.keys(one), ...Object.keys(two)]);
  return [...names].every((name) => (one[name] ?? "") === (two[name] ?? ""));
}

const isGiven = (bound: number | null | undefined): bound is number =>
  bound !== null && bound !== undefined;

/** Return the bounds of a number for people, "" without bounds. */
export function boundsText({ minimum, maximum }: Field): string {
  const text = (bound: number): string =>
    Math.abs(bound) >= 1e5 ? bound.toLocaleString("en") : String(bound);
  if (isGiven(minimum) && isGiven(maximum)) return `${text(minimum)} to ${text(maximum)}`;
  if (isGiven(minimum)) return `at least ${text(minimum)}`;
  return isGiven(maximum) ? `at most ${text(maximum)}` : "";
}

/** Return what is wrong with the text of a field; "" for nothing. */
export function faultOf(field: Field, text: string): string {
  if (typeof field.default !== "number") return "";
  const number = Number(text);
  const { minimum, maximum } = field;
  const isRight =
    text.trim() !== "" &&
    Number.isFinite(number) &&
    !(isGiven(minimum) && number < minimum) &&
    !(isGiven(maximum) && number > maximum);
  const bounds = boundsText(field);
  if (isRight) return "";
  return bounds ? `This must be a number: ${bounds}.` : "This must be a number.";
}

/** The model's field that a refusal names, as in "models.heat.size (Cells) must ...". */
export function namedField(sentence: string): [string, string] | undefined {
  const found = /^models\.\w+\.(\w+) \((.*)\) (must .*)$/.exec(sentence);
  return found?.[1] ? [found[1], `${found[2]} ${found[3]}`] : undefined;
}

// ---- the address

export const PANELS = ["log", "files", "library"] as const;
export type Panel = (typeof PANELS)[number];

export interface SimulationView {
  /** "": the one that was saved. */
  model: string;
  panel: Panel;
  stream: "stdout" | "stderr";
  /** -1: the newest. */
  frame: number;
}

export function parseSimulationView(search: string): SimulationView {
  const query = new URLSearchParams(search);
  const frame = query.get("frame") ?? "";
  const model = query.get("model") ?? "";
  return {
    model: /^\w{1,64}$/.test(model) ? model : "",
    panel: PANELS.find((p) => p === query.get("tab")) ?? "log",
    stream: query.get("stream") === "stderr" ? "stderr" : "stdout",
    frame: /^\d{1,9}$/.test(frame) && Number(frame) > 0 ? Number(frame) - 1 : -1,
  };
}

export function formatSimulationView(view: SimulationView): string {
  const query = new URLSearchParams();
  if (view.model) query.set("model", view.model);
  if (view.panel !== "log") query.set("tab", view.panel);
  if (view.stream !== "stdout") query.set("stream", view.stream);
  if (view.frame >= 0) query.set("frame", String(view.frame + 1));
  const text = query.toString();
  return text ? `?${text}` : "";
}
