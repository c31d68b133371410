/** The page of apps: the installed apps, and the user's simulations as cards. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import { get } from "../api.ts";
import {
  type AppInfo,
  type AppStatus,
  type LibFile,
  loadApps,
  loadLibrary,
  loadSimulation,
  newSid,
  runStatus,
  saveSimulation,
  sidOf,
  simulationPath,
} from "../apps.ts";
import { now } from "../clock.ts";
import type { ProgressEvent, Status } from "../jobs.ts";
import { type OnEvent, useLive } from "../live.ts";
import { Frame } from "../parts/frame.tsx";
import { Icon } from "../parts/icons.tsx";
import { said } from "../parts/library.tsx";
import { Empty, ErrorMessage, Loading } from "../parts/messages.tsx";
import { StateBadge } from "../parts/state.tsx";
import { pageColours, useScheme } from "../picture/canvas.tsx";
import { described, kindOf, type Picture } from "../picture/draw.ts";
import { drawThumbnail } from "../picture/thumbnail.ts";
import { useRemote } from "../remote.ts";
import { path, site } from "../site.ts";
import { answered, fromStream, heard, progressed, progressText } from "../text/app_status.ts";
import { ago, plural, sentence } from "../text/format.ts";
import { defaultsOf, modelOf, type Simulation } from "../text/simulation.ts";

/** More cards are shown on request. */
const PAGE = 24;

interface Entry {
  app: AppInfo;
  sid: string;
  file: LibFile;
}

/** Return the stored simulations of all apps, the newest first. */
async function loadEntries(signal: AbortSignal): Promise<Entry[]> {
  const usable = (await loadApps()).filter((app) => app.models?.length);
  const lists = await Promise.all(
    usable.map(async (app) => {
      const files = await loadLibrary(app.name, signal);
      return files.flatMap((file) => {
        const sid = sidOf(file.name);
        return sid ? [{ app, sid, file }] : [];
      });
    }),
  );
  return lists.flat().sort((a, b) => (b.file.mtime ?? 0) - (a.file.mtime ?? 0));
}

export function AppsPage(): JSX.Element {
  const { url, route } = useLocation();
  const chosen = new URLSearchParams(url.split("?")[1] ?? "").get("app") ?? "";
  const [limit, setLimit] = useState(PAGE);
  const apps = useRemote("apps", loadApps);
  const entries = useRemote("simulations", loadEntries);
  const heardBy = useRef(new Map<string, OnEvent>());
  const reloads = useRef(new Set<() => void>());
  const reload = (): void => {
    for (const ask of reloads.current) ask();
  };
  useLive(
    "",
    (name, event) =>
      heardBy.current.get((event as { computeJid?: string }).computeJid ?? "")?.(name, event),
    reload,
    reload,
  );
  const all = entries.data ?? [];
  const shown = chosen ? all.filter((e) => e.app.name === chosen) : all;
  const create = async (app: AppInfo): Promise<void> => {
    const model = modelOf(app);
    if (!model) return;
    const sid = newSid();
    const name = newName(app.title ?? app.name, all.filter((e) => e.app.name === app.name).length);
    const saved = { name, model: model.name, models: { [model.name]: defaultsOf(model) } };
    if (await said("It is not created.", () => saveSimulation(app.name, sid, saved)))
      route(simulationPath(app.name, sid));
  };
  const error = apps.error ?? entries.error;
  return (
    <Frame title="Apps">
      <div class="page-head">
        <h1>Apps</h1>
      </div>
      {error && <ErrorMessage error={error} again={() => [apps, entries].map((r) => r.reload())} />}
      {!error && !apps.data && <Loading what="apps" />}
      {apps.data && (
        <ul class="apps" aria-label="Installed apps">
          {apps.data.map((app) => (
            <AppCard
              key={app.name}
              app={app}
              isChosen={app.name === chosen}
              count={
                entries.data || entries.error
                  ? all.filter((e) => e.app.name === app.name).length
                  : undefined
              }
              onNew={() => void create(app)}
            />
          ))}
        </ul>
      )}
      {!error && apps.data && !entries.data && <Loading what="simulations" />}
      {apps.data?.length === 0 && <Empty title="There are no apps for you on this site." />}
      {entries.data && apps.data && (
        <section aria-label="Simulations">
          <div class="page-head simulations-head">
            <h2>Simulations</h2>
            {chosen && <a href={path("/apps")}>All apps</a>}
            <a class="runs-link" href={path(chosen ? `/jobs?app=${chosen}` : "/jobs")}>
              All runs
            </a>
          </div>
          {shown.length === 0 && (
            <Empty title="There are no simulations yet.">
              <p class="soft">Create one with “New” at an app. Its values and results stay.</p>
            </Empty>
          )}
          <ul class="simulations">
            {shown.slice(0, limit).map((entry) => (
              <SimulationCard
                key={`${entry.app.name} ${entry.sid}`}
                entry={entry}
                onWish={(jid, onEvent, ask) => {
                  heardBy.current.set(jid, onEvent);
                  reloads.current.add(ask);
                  return () => {
                    heardBy.current.delete(jid);
                    reloads.current.delete(ask);
                  };
                }}
              />
            ))}
          </ul>
          {shown.length > limit && (
            <button type="button" onClick={() => setLimit(limit + PAGE)}>
              Show more of {plural(shown.length, "simulation")}
            </button>
          )}
        </section>
      )}
    </Frame>
  );
}

const newName = (title: string, count: number): string => (count ? `${title} ${count + 1}` : title);

function AppCard(props: {
  app: AppInfo;
  isChosen: boolean;
  /** Number of its simulations; undefined before it is known. A new one is named by it. */
  count: number | undefined;
  onNew: () => void;
}): JSX.Element {
  const { app, count } = props;
  const title = app.title ?? app.name;
  return (
    <li class="card app" data-app={app.name} aria-current={props.isChosen ? "true" : undefined}>
      <div>
        <h2>
          <a href={path(`/apps?app=${app.name}`)}>{title}</a>
        </h2>
        <p class="soft note">
          {app.error
            ? sentence(`this app cannot be used: ${app.error}`)
            : count === undefined
              ? "…"
              : count
                ? plural(count, "simulation")
                : "No simulations yet"}
        </p>
      </div>
      {!app.error && (
        <button
          type="button"
          class="main"
          aria-label={`New simulation: ${title}`}
          disabled={count === undefined}
          onClick={props.onNew}
        >
          <Icon name="add" />
          New
        </button>
      )}
    </li>
  );
}

interface Known {
  simulation: Simulation | undefined;
  status: AppStatus;
  picture: Picture | undefined;
}

type Wish = (jid: string, onEvent: OnEvent, ask: () => void) => () => void;

function SimulationCard({ entry, onWish }: { entry: Entry; onWish: Wish }): JSX.Element {
  const { app, sid, file } = entry;
  const place = useRef<HTMLLIElement>(null);
  const isSeen = useSeen(place);
  const latest = useRef<AppStatus | undefined>(undefined);
  const known = useRemote<Known | undefined>(
    `card ${app.name} ${sid} ${file.sha256} ${isSeen}`,
    async (signal) => {
      if (!isSeen) return undefined;
      const simulation = await loadSimulation(app.name, sid, signal, file.sha256);
      const model = modelOf(app, simulation?.model ?? "");
      const run = { simulationType: app.name, simulationId: sid, report: model?.name ?? "" };
      const status = await answered(latest, runStatus(run, signal));
      const picture = await previewOf(entry, status, signal);
      // the stream may have sent news since then
      return { simulation, status: latest.current ?? status, picture };
    },
  );
  const simulation = known.data?.simulation;
  const status = known.data?.status;
  const model = modelOf(app, simulation?.model ?? "");
  const jid = `${site.user}-${sid}-${model?.name ?? ""}`;
  useEffect(() => {
    if (!simulation) return;
    const set = (next: AppStatus): void => {
      latest.current = next;
      known.patch((k) => k && { ...k, status: next });
    };
    return onWish(
      jid,
      (name, event) => {
        const last = latest.current;
        if (name === "progress" && last) {
          const { computeJobSerial, parallelStatus } = event as ProgressEvent;
          set(progressed(last, computeJobSerial, parallelStatus));
        } else if (name === "status") {
          const next = heard(last, fromStream(event as Status), false);
          set(next);
          if (next.state !== last?.state) known.reload();
        }
      },
      known.reload,
    );
  }, [jid, simulation]);
  const isRun = Boolean(status?.computeJobSerial);
  const at = status?.computeJobEnd ?? status?.computeJobStart ?? status?.computeJobQueued;
  return (
    <li
      ref={place}
      class="card simulation"
      data-sid={sid}
      data-state={isRun ? status?.state : "new"}
    >
      <Thumbnail picture={known.data?.picture} isKnown={status !== undefined} />
      <h3>
        <a href={simulationPath(app.name, sid)}>{simulation?.name ?? "…"}</a>
      </h3>
      <p class="soft note">
        {model && app.models && app.models.length > 1 ? model.title : (app.title ?? app.name)}
      </p>
      <p class="simulation-state">
        {isRun && status ? (
          <StateBadge state={status.state} />
        ) : (
          status && <span class="soft note">not started</span>
        )}
        <span class="soft note number">
          {status?.state === "running" ? progressText(status) : at ? ago(at, now.value) : ""}
        </span>
      </p>
      {known.error && <p class="soft note">{sentence(known.error.message)}</p>}
    </li>
  );
}

/** Return the newest picture of a run, if it has one. */
async function previewOf(
  { app, sid }: Entry,
  status: AppStatus,
  signal: AbortSignal,
): Promise<Picture | undefined> {
  const { computeJobHash: hash, computeJobSerial: serial, frameCount = 0 } = status;
  if (kindOf(status as unknown as Picture)) return status as unknown as Picture;
  const model = app.models?.find((m) => status.computeJid.endsWith(`-${m.name}`));
  const report = model?.reports[0]?.name;
  if (!hash || !serial || frameCount < 1 || !report) return undefined;
  const id = [frameCount - 1, report, sid, app.name, hash, serial].join("*");
  try {
    return await get<Picture>(`/simulation-frame/${encodeURIComponent(id)}`, signal);
  } catch {
    return undefined; // its files may be gone
  }
}

function Thumbnail(props: { picture: Picture | undefined; isKnown: boolean }): JSX.Element {
  const { picture } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const isDark = useScheme();
  useEffect(() => {
    if (canvas.current && picture) drawThumbnail(canvas.current, picture, pageColours());
  }, [picture, isDark]);
  if (!picture) {
    return <div class="thumbnail soft note">{props.isKnown ? "No results yet" : ""}</div>;
  }
  const label = kindOf(picture) === "curves" ? (picture.title ?? "Curves") : described(picture);
  return <canvas class="thumbnail" ref={canvas} role="img" aria-label={label} />;
}

/** Return whether the element was in sight. */
function useSeen(place: { current: Element | null }): boolean {
  const [isSeen, setSeen] = useState(false);
  useEffect(() => {
    const element = place.current;
    if (!element || isSeen) return;
    const observer = new IntersectionObserver((found) => {
      if (found.some((f) => f.isIntersecting)) setSeen(true);
    });
    observer.observe(element);
    return () => observer.disconnect();
  }, [isSeen]);
  return isSeen;
}
