/** Defaults and limits beside the fields of a job, from the answer of the supervisor. Pure. */

import { bytes, duration } from "./format.ts";
import {
  clusterOf,
  driverOf,
  type Field,
  type Form,
  type Options,
  type Partition,
  type RoleField,
} from "./job_form.ts";

export type Hints = { [name in Field]?: string | undefined };

/** Of the fields that only roles have. */
export const ROLE_HINTS: { [name in RoleField]?: string } = {
  name: "Letters and digits.",
  tasks: "Default: 1.",
  failed: "Failed tasks. Default: 1; or never.",
  succeeded: "Succeeded tasks. Default: all tasks have ended.",
};

const MIB = 1_048_576;

const least = (...limits: (number | null | undefined)[]): number | undefined => {
  const known = limits.filter((n): n is number => typeof n === "number");
  return known.length ? Math.min(...known) : undefined;
};

/** Return the partition that a form names, or else the cluster's own. */
export function partitionOf(form: Form, options: Options | undefined): Partition | undefined {
  const partitions = clusterOf(form, options)?.partitions ?? [];
  return partitions.find((p) => p.name === form.partition) ?? partitions.find((p) => p.default);
}

const joined = (...parts: (string | undefined)[]): string => parts.filter(Boolean).join(" ");

/** Return the hints of all fields; a field without one has no text. */
export function hints(form: Form, options: Options | undefined): Hints {
  if (!options) return {};
  const driver = driverOf(form, options);
  const isOnCluster = driver?.cluster === true;
  const partition = isOnCluster ? partitionOf(form, options) : undefined;
  const largest = driver?.largest;
  const { limits } = options;
  const usual = isOnCluster ? "Default: the cluster's." : "Default: nothing is reserved.";
  const cores = least(largest?.cpu, partition?.coresPerNode, limits.cores, limits.totalCores);
  const memory = least(largest?.memory, partition?.memoryMbPerNode, limits.totalMemory);
  const gpus = least(largest?.gpu, partition?.gpusPerNode, limits.gpus, limits.totalGpus);
  const time = least(partition?.timeLimitSecs, isOnCluster ? undefined : limits.sequential);
  const usualTime = limits.sequential ?? options.timeLimit;
  const noGpu = gpus === 0;
  return {
    name: "Letters, digits and . _ -",
    queue: `Default: ${options.queue}.`,
    driver: options.drivers[0] ? `Default: ${options.drivers[0].name}.` : undefined,
    partition: partition && !form.partition ? `Default: ${partition.name}.` : undefined,
    cores: joined(usual, cores === undefined ? "" : `At most ${cores}.`),
    memory: joined("512MB, 4GB.", memory === undefined ? "" : `At most ${bytes(memory * MIB)}.`),
    gpus: noGpu
      ? "This driver has no GPUs."
      : joined(
          "Default: 0.",
          gpus === undefined ? "" : `At most ${gpus}.`,
          driver?.gpuTypes.join(", "),
        ),
    time: joined(
      "90s, 15m, 2h, 1d.",
      usualTime && !isOnCluster ? `Default: ${duration(usualTime)}.` : "",
      !usualTime && !isOnCluster ? "Default: no limit." : "",
      time === undefined ? "" : `At most ${duration(time)}.`,
    ),
    image: "Default: the image of the pool.",
    array: `0-99%10: 100 runs, 10 at once; $ARRAY_INDEX is the index. At most ${options.maxRuns.toLocaleString()} runs.`,
    env: "NAME=value, one a line. No secrets: they would be stored.",
    retries: "After a failure of the program. Default: 0.",
    platform: "After a lost machine or a signal from outside. Default: 0, or 3 with Retries.",
    tags: `Separated by commas, at most ${options.maxTags}.`,
  };
}
