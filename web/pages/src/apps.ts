/** The installed apps, the user's simulations and library, and requests about runs of apps. */

import { ApiError, get, getTagged, post, refusal } from "./api.ts";
import type { Why } from "./jobs.ts";
import { path } from "./site.ts";
import type { AppInfo, Values } from "./text/app_types.ts";
import type { SignInNeed } from "./text/cluster_sign_in.ts";
import {
  NO_FILE,
  NOT_STORED,
  parseSimulation,
  type Simulation,
  type StoredSimulation,
} from "./text/simulation.ts";

export type { AppInfo, Field, Model, Report, Value, Values } from "./text/app_types.ts";

export interface Partition {
  name: string;
  default?: boolean;
  up?: boolean;
  timeLimitSecs?: number | null;
  maxNodes?: number | null;
  nodes?: number | null;
  coresPerNode?: number | null;
  memoryMbPerNode?: number | null;
  gpusPerNode?: number | null;
}

export interface Cluster {
  cluster: string;
  state?: string;
  accounts?: string[] | null;
  defaults?: { partition?: string };
  limits?: { timeLimitSecs?: number | null; nodes?: number | null; cores?: number | null };
  partitions?: Partition[] | null;
}

/** What a run of an app is told to be; `result` of a sequential model is beside it. */
export interface AppStatus {
  state: string;
  computeJid: string;
  computeJobSerial?: number;
  computeJobHash?: string;
  computeJobQueued?: number;
  computeJobStart?: number;
  computeJobEnd?: number;
  computeJobPosition?: number;
  reason?: string;
  error?: string;
  known?: boolean;
  queueState?: string;
  jobStatusMessage?: string;
  canceledAfterSecs?: number;
  alert?: string;
  frameCount?: number;
  frameTotal?: number;
  percentComplete?: number;
  nextRequestSeconds?: number;
  why?: Why;
  signIn?: SignInNeed;
  batch?: Record<string, unknown>;
  resultError?: { error: string; advice: string };
  quotaWarning?: string;
  [other: string]: unknown;
}

export interface LibFile {
  name: string;
  size: number;
  sha256: string;
  mtime?: number | null;
}

const PATIENCE_MS = 45_000;

/** Change a file of the library. */
async function change(
  method: "PUT" | "DELETE",
  address: string,
  body?: string,
  condition: Record<string, string> = {},
): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path(address), {
      method,
      credentials: "same-origin",
      headers: { "X-Jobscribe": "1", ...condition },
      signal: AbortSignal.timeout(PATIENCE_MS),
      ...(body === undefined ? {} : { body }),
    });
  } catch {
    throw new ApiError("unreachable", "the site does not answer", "try again", 0, true);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

let apps: Promise<AppInfo[]> | undefined;

/** Return the installed apps. They change only when the site starts again. */
export function loadApps(): Promise<AppInfo[]> {
  apps ??= get<{ apps: AppInfo[] }>("/apps").then((reply) => reply.apps);
  apps.catch(() => {
    apps = undefined;
  });
  return apps;
}

export const loadClusters = async (signal?: AbortSignal): Promise<Cluster[]> =>
  (await get<{ clusters: Cluster[] }>("/clusters", signal)).clusters;

// ---- simulations, which are files of the library

const PREFIX = "simulation.";
const SUFFIX = ".json";
const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

export const simulationPath = (type: string, sid: string): string => path(`/apps/${type}/${sid}`);

/** Return the id of a new simulation: eight letters or digits. */
export const newSid = (): string =>
  Array.from(crypto.getRandomValues(new Uint32Array(8)), (n) => LETTERS[n % 62]).join("");

export const fileOf = (sid: string): string => `${PREFIX}${sid}${SUFFIX}`;

/** Return the id of the simulation that a file of the library has, if it has one. */
export function sidOf(name: string): string | undefined {
  const sid = name.slice(PREFIX.length, -SUFFIX.length);
  return name === fileOf(sid) && /^[A-Za-z0-9]{8}$/.test(sid) ? sid : undefined;
}

export const libPath = (type: string, name: string): string =>
  `/lib-file/${type}/${encodeURIComponent(name)}`;

export const loadLibrary = async (type: string, signal?: AbortSignal): Promise<LibFile[]> =>
  (await get<{ files: LibFile[] }>(`/lib-files/${type}`, signal)).files;

/** Read simulations by the digest of their file, which never changes. */
const read = new Map<string, Simulation>();

/** Return a stored simulation, undefined if there is none. */
export async function loadSimulation(
  type: string,
  sid: string,
  signal?: AbortSignal,
  sha256 = "",
): Promise<Simulation | undefined> {
  const known = sha256 ? read.get(sha256) : undefined;
  if (known) return known;
  try {
    const found = parseSimulation(await get<unknown>(libPath(type, fileOf(sid)), signal));
    if (sha256) read.set(sha256, found);
    return found;
  } catch (error) {
    if (error instanceof ApiError && error.http === 404) return undefined;
    throw error;
  }
}

/** Load a simulation with the tag of its file. */
export async function loadStored(
  type: string,
  sid: string,
  signal?: AbortSignal,
): Promise<StoredSimulation> {
  try {
    const { content, tag } = await getTagged<unknown>(libPath(type, fileOf(sid)), signal);
    return { found: parseSimulation(content), tag };
  } catch (error) {
    if (error instanceof ApiError && error.http === 404) return NOT_STORED;
    throw error;
  }
}

/**
 * Store a simulation over the file with this tag. Return the new tag. Raises ApiError("conflict") if the
 * file was changed meanwhile. Without a tag it is stored over any file.
 */
export async function saveSimulation(
  type: string,
  sid: string,
  saved: Simulation,
  tag = "",
): Promise<string> {
  const body = JSON.stringify(saved, undefined, 1);
  const condition: Record<string, string> =
    tag === NO_FILE ? { "If-None-Match": "*" } : tag ? { "If-Match": tag } : {};
  const response = await change("PUT", libPath(type, fileOf(sid)), body, condition);
  const reply = (await response.json().catch(() => ({}))) as { etag?: unknown };
  return typeof reply.etag === "string" ? reply.etag : "";
}

export async function deleteLibFile(type: string, name: string): Promise<void> {
  await change("DELETE", libPath(type, name));
}

/** Upload a file into the library. onShare: called with the part that is sent, from 0 to 1. */
export function uploadLibFile(
  type: string,
  file: File,
  onShare: (share: number) => void,
): Promise<void> {
  return new Promise((resolve, reject) => {
    // fetch does not report the progress of an upload
    const request = new XMLHttpRequest();
    request.open("PUT", path(libPath(type, file.name)));
    request.setRequestHeader("X-Jobscribe", "1");
    request.upload.onprogress = (event) => {
      if (event.lengthComputable) onShare(event.loaded / event.total);
    };
    const unreachable = (): void =>
      reject(new ApiError("unreachable", "the site does not answer", "upload it again", 0, false));
    request.onerror = unreachable;
    request.onabort = unreachable;
    request.onload = () => {
      if (request.status < 300) return resolve();
      void refusal(new Response(request.response, { status: request.status })).then(reject);
    };
    request.send(file);
  });
}

// ---- runs

export interface RunOf {
  simulationType: string;
  simulationId: string;
  report: string;
}

export interface Started {
  status: AppStatus;
  signIn: SignInNeed | undefined;
}

/** Start a run of the model, join the active one, or get the result of one with equal values. */
export async function start(
  run: RunOf,
  saved: Simulation,
  values: Values,
  forceRun: boolean,
): Promise<Started> {
  const models = { simulation: { name: saved.name }, [run.report]: values };
  const said = await post<AppStatus & { srException?: { params: SignInNeed }; run?: AppStatus }>(
    "/run-simulation",
    { ...run, models, forceRun },
  );
  const signIn = said.state === "srException" ? said.srException?.params : undefined;
  return { status: said.run && signIn ? { ...said.run, signIn } : said, signIn };
}

export const runStatus = (run: RunOf, signal?: AbortSignal): Promise<AppStatus> =>
  post("/run-status", run, signal);
