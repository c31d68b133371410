/** The form of a simulation: its texts, their faults and values. Pure. */

import type { Cluster, Model, Partition, Value, Values } from "../apps.ts";
import { faultOf } from "./simulation.ts";

export type Texts = Record<string, string | boolean>;

/** A number that is asked of a cluster. of: the bound of a partition. */
export interface Wish {
  name: string;
  title: string;
  unit?: string;
  isWhole: boolean;
  of: (p: Partition) => number | null | undefined;
  limit?: (limits: NonNullable<Cluster["limits"]>) => number | null | undefined;
}

const hours = (secs: number | null | undefined): number | null => (secs ? secs / 3600 : null);

export const WISHES: Wish[] = [
  {
    name: "sbatchHours",
    title: "Time limit",
    unit: "h",
    isWhole: false,
    of: (p) => hours(p.timeLimitSecs),
    limit: (l) => hours(l.timeLimitSecs),
  },
  {
    name: "sbatchNodes",
    title: "Nodes",
    isWhole: true,
    of: (p) => p.maxNodes ?? p.nodes,
    limit: (l) => l.nodes,
  },
  { name: "tasksPerNode", title: "Tasks on each node", isWhole: true, of: () => null },
  {
    name: "sbatchCores",
    title: "Cores of each task",
    isWhole: true,
    of: (p) => p.coresPerNode,
    limit: (l) => l.cores,
  },
];
export const CLUSTER = "sbatchCluster";
/** Names of the fields that say where a run runs, with their texts at first. */
export const PLACES: Texts = Object.fromEntries(
  ["jobRunMode", CLUSTER, "sbatchQueue", "sbatchProject", ...WISHES.map((w) => w.name)].map(
    (name) => [name, ""],
  ),
);

export function textsOf(model: Model, values: Values): Texts {
  const texts: Texts = {};
  for (const field of model.fields) {
    const value = values[field.name] ?? field.default;
    texts[field.name] = typeof value === "boolean" ? value : String(value);
  }
  for (const name of Object.keys(PLACES)) {
    const value = values[name];
    if (value !== undefined) texts[name] = String(value);
  }
  return texts;
}

export const clusterOf = (clusters: Cluster[], texts: Texts): Cluster | undefined =>
  clusters.find((c) => c.cluster === texts[CLUSTER]);

export const partitionOf = (cluster: Cluster | undefined, texts: Texts): Partition | undefined =>
  cluster?.partitions?.find((p) => p.name === partitionName(cluster, texts));

/** Return the chosen partition: that of the text, or else the default one. "": the cluster's own. */
export function partitionName(cluster: Cluster, texts: Texts): string {
  const usable = (cluster.partitions ?? []).filter((p) => p.up !== false);
  const usual = cluster.defaults?.partition ?? usable.find((p) => p.default)?.name;
  const wanted = String(texts.sbatchQueue ?? usual ?? "");
  return !cluster.partitions || usable.some((p) => p.name === wanted) ? wanted : "";
}

/** Return the most that partition and cluster permit; null if they do not say. */
export function mostOf(
  wish: Wish,
  cluster: Cluster,
  partition: Partition | undefined,
): number | null {
  const bounds = [partition && wish.of(partition), wish.limit?.(cluster.limits ?? {})];
  const known = bounds.filter((b): b is number => typeof b === "number");
  return known.length ? Math.min(...known) : null;
}

/** Return the faults by name of the field, in the order of the form. */
export function faultsOf(model: Model, clusters: Cluster[], texts: Texts): Map<string, string> {
  const faults = new Map<string, string>();
  for (const field of model.fields) {
    const fault = faultOf(field, String(texts[field.name] ?? ""));
    if (fault) faults.set(field.name, fault);
  }
  const cluster = clusterOf(clusters, texts);
  const partition = partitionOf(cluster, texts);
  for (const wish of cluster ? WISHES : []) {
    const fault = wishFault(
      wish,
      String(texts[wish.name] ?? ""),
      cluster && mostOf(wish, cluster, partition),
    );
    if (fault) faults.set(wish.name, fault);
  }
  return faults;
}

function wishFault(wish: Wish, text: string, most: number | null | undefined): string {
  if (text.trim() === "") return "";
  const number = Number(text);
  if (most && number > most) return `This may be at most ${rounded(most)} here.`;
  const isRight = wish.isWhole ? Number.isInteger(number) && number >= 1 : number > 0;
  return isRight && Number.isFinite(number)
    ? ""
    : `This must be ${wish.isWhole ? "a whole number of at least 1" : "a number over 0"}, or empty.`;
}

const rounded = (number: number): string => String(Math.round(number * 100) / 100);

/** Return the values that a run gets, of texts without faults. */
export function valuesFrom(model: Model, clusters: Cluster[], texts: Texts): Values {
  const values: Values = {};
  for (const { name, default: usual } of model.fields) {
    const text = texts[name] ?? String(usual);
    values[name] =
      typeof usual === "number" ? Number(text) : typeof usual === "boolean" ? text === true : text;
  }
  const cluster = clusterOf(clusters, texts);
  if (!cluster) return values;
  const place: [string, Value][] = [
    ["jobRunMode", "sbatch"],
    [CLUSTER, cluster.cluster],
    ["sbatchQueue", partitionName(cluster, texts).trim()],
    ["sbatchProject", String(texts.sbatchProject ?? "").trim()],
    ...WISHES.map(({ name }): [string, Value] => {
      const text = String(texts[name] ?? "").trim();
      return [name, text && Number(text)];
    }),
  ];
  return { ...values, ...Object.fromEntries(place.filter(([, value]) => value !== "")) };
}

/** Return one line about what a partition permits. */
export function partitionText(cluster: Cluster, p: Partition | undefined): string {
  const said: string[] = [];
  if (p?.timeLimitSecs) said.push(`up to ${rounded(p.timeLimitSecs / 3600)} h`);
  if (p && (p.maxNodes ?? p.nodes)) said.push(`${p.maxNodes ?? p.nodes} nodes`);
  if (p?.coresPerNode) said.push(`${p.coresPerNode} cores each`);
  if (p?.memoryMbPerNode) said.push(`${Math.floor(p.memoryMbPerNode / 1024)} GB each`);
  if (p?.gpusPerNode) said.push(`${p.gpusPerNode} GPUs each`);
  const away =
    cluster.state === "unreachable" ? "Its scheduler cannot be asked at the moment." : "";
  return [said.length ? `${said.join(", ")}.` : "", away].filter(Boolean).join(" ");
}
