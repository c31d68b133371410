/** The page of one simulation: result or cause first, then output and files; beside it its values. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useLocation, useRoute } from "preact-iso";
import { data } from "../api.ts";
import {
  type AppInfo,
  type AppStatus,
  fileOf,
  loadApps,
  loadClusters,
  loadStored,
  type Model,
  type RunOf,
  runStatus,
  type Values,
} from "../apps.ts";
import { isActive, type ProgressEvent, type Status } from "../jobs.ts";
import { link, useLive } from "../live.ts";
import { ClusterSignIn } from "../parts/cluster_sign_in.tsx";
import { Frame } from "../parts/frame.tsx";
import { Empty, ErrorMessage, Loading } from "../parts/messages.tsx";
import { Frames, NoFrames, Result } from "../parts/results.tsx";
import { SimulationHead } from "../parts/simulation_head.tsx";
import { Panels } from "../parts/simulation_panels.tsx";
import { ValuesForm } from "../parts/simulation_values.tsx";
import { TAIL, useLog } from "../parts/use_log.ts";
import { WhyCard, type WhyReply } from "../parts/why.tsx";
import { useRemote } from "../remote.ts";
import { heardStored, type LibraryEvent } from "../save_values.ts";
import { path, site } from "../site.ts";
import { answered, fromStream, heard, progressed, sentenceOf } from "../text/app_status.ts";
import type { SignInNeed } from "../text/cluster_sign_in.ts";
import { sentence } from "../text/format.ts";
import { type JobView, liveQuery } from "../text/job_view.ts";
import type { LogPiece } from "../text/log_place.ts";
import {
  completed,
  formatSimulationView,
  modelOf,
  parseSimulationView,
  type SimulationView,
  type StoredSimulation,
} from "../text/simulation.ts";

export function SimulationPage(): JSX.Element {
  const { type = "", sid = "" } = useRoute().params;
  return <Loaded key={`${type} ${sid}`} type={type} sid={sid} />;
}

/** A run that was started elsewhere has no stored simulation, but values. */
interface Story {
  events: { event: { type: string; spec?: { data?: { models?: Record<string, Values> } } } }[];
}

function Loaded({ type, sid }: { type: string; sid: string }): JSX.Element {
  const all = useRemote("apps", loadApps);
  const stored = useRemote(`simulation ${type} ${sid}`, (signal) => loadStored(type, sid, signal));
  const app = all.data?.find((a) => a.name === type);
  const error = all.error ?? stored.error;
  const missing = (all.data && !app) || (error && [400, 404].includes(error.http));
  if (missing) return <Missing />;
  if (!app || !stored.data) {
    return (
      <Frame title="Simulation">
        {error ? (
          <ErrorMessage error={error} again={() => [all, stored].map((r) => r.reload())} />
        ) : (
          <Loading what="the simulation" />
        )}
      </Frame>
    );
  }
  return (
    <Open app={app} sid={sid} stored={stored.data} onStored={(next) => stored.patch(() => next)} />
  );
}

function Missing(): JSX.Element {
  return (
    <Frame title="No such simulation">
      <h1 class="hidden">No such simulation</h1>
      <Empty title="There is no such simulation, or it is not yours.">
        <p>
          <a href={path("/apps")}>All apps and simulations</a>
        </p>
      </Empty>
    </Frame>
  );
}

interface OpenProps {
  app: AppInfo;
  sid: string;
  stored: StoredSimulation;
  onStored: (stored: StoredSimulation) => void;
}

function Open(props: OpenProps): JSX.Element {
  const { app, sid, stored } = props;
  const { url, route } = useLocation();
  const view = parseSimulationView(url.includes("?") ? url.slice(url.indexOf("?")) : "");
  const model = modelOf(app, view.model, stored.found?.model ?? "");
  const change = (part: Partial<SimulationView>, replace = false): void =>
    route(path(`/apps/${app.name}/${sid}`) + formatSimulationView({ ...view, ...part }), replace);
  if (!model) {
    return (
      <Frame title={app.title ?? app.name}>
        <Empty title={sentence(app.error ?? "this app has no models")}>
          <p class="soft">Ask the operator of this site.</p>
        </Empty>
      </Frame>
    );
  }
  return <Shown key={model.name} {...props} model={model} view={view} onView={change} />;
}

/** News of the run, in the order of the run: an answer that was under way is older than them. */
function useStatus(run: RunOf) {
  const latest = useRef<AppStatus | undefined>(undefined);
  const remote = useRemote(`run ${run.simulationId} ${run.report}`, (signal) =>
    answered(latest, runStatus(run, signal)),
  );
  const set = (next: AppStatus): void => {
    latest.current = next;
    remote.patch(() => next);
  };
  return { ...remote, latest, set };
}

function Shown(
  props: OpenProps & {
    model: Model;
    view: SimulationView;
    onView: (part: Partial<SimulationView>, replace?: boolean) => void;
  },
): JSX.Element {
  const { app, sid, model, view, onView } = props;
  const stored = props.stored.found;
  const run: RunOf = { simulationType: app.name, simulationId: sid, report: model.name };
  const jid = `${site.user}-${sid}-${model.name}`;
  const named = { computeJid: jid };
  const status = useStatus(run);
  const now = status.data;
  const isRun = now !== undefined && Boolean(now.computeJobSerial);
  const why = useRemote<WhyReply | undefined>(`${jid} ${isRun}`, async (signal) =>
    isRun ? data("job-why", named, signal) : undefined,
  );
  const ran = useRemote(
    `values ${jid} ${now?.computeJobSerial ?? 0}`,
    async (signal) =>
      isRun ? valuesRun(await data<Story>("job-story", named, signal), model) : undefined,
    true,
  );
  const clusters = useRemote("clusters", loadClusters);
  const [need, setNeed] = useState<SignInNeed | undefined>();
  const live = isRun ? liveQuery(jid, jobView(view), TAIL) : "";
  const log = useLog(jid, jobView(view), live);
  const opened = useRef(false);
  const hear = (next: AppStatus): void => {
    const last = status.latest.current;
    if (next.computeJid !== jid) return;
    status.set(heard(last, next, false));
    const changed = last?.state !== next.state || last?.computeJobSerial !== next.computeJobSerial;
    // the stream has neither the result nor where to sign in
    if (changed || next.known === false || next.queueState === "sign_in") status.reload();
    if (changed || last?.jobStatusMessage !== next.jobStatusMessage) why.reload();
  };
  useLive(
    live,
    (name, event) => {
      if (name === "status") hear(fromStream(event as Status));
      else if (name === "log") log.add(event as LogPiece);
      else if (name === "library") heardStored(event as LibraryEvent);
      else if (name === "progress") {
        const { computeJid, computeJobSerial, parallelStatus } = event as ProgressEvent;
        const last = status.latest.current;
        if (!last || computeJid !== jid) return;
        status.set(progressed(last, computeJobSerial, parallelStatus));
        // its agent is heard of again
        if (last.known === false) status.reload();
      }
    },
    () => {
      for (const remote of [status, why]) remote.reload();
      void log.ask(status.data?.computeJobSerial ?? 0);
    },
    () => {
      for (const remote of [status, why]) remote.reload();
      // it may have been stored while the stream was away
      if (opened.current) heardStored({ simulationType: app.name, name: fileOf(sid) });
      opened.current = true;
    },
  );
  useFastAsk(now, status.reload);
  useEffect(() => {
    // a failed run without output has its message in the other stream
    const isSilent = log.state.ended && log.state.text.blocks.length === 0;
    if (isSilent && now?.state === "error" && view.panel === "log" && view.stream === "stdout")
      onView({ stream: "stderr" }, true);
  }, [log.state.ended, now?.state]);

  if (status.error && !now) {
    return (
      <Frame title={stored?.name ?? "Simulation"}>
        <ErrorMessage error={status.error} again={status.reload} />
      </Frame>
    );
  }
  if (!now || (!stored && isRun && !ran.data && !ran.error)) {
    return (
      <Frame title={stored?.name ?? "Simulation"}>
        <Loading what="the simulation" />
      </Frame>
    );
  }
  if (!stored && !isRun) return <Missing />;
  const simulation = stored ?? { name: app.title ?? app.name, model: model.name, models: {} };
  const onStarted = (next: AppStatus): void => {
    status.set(heard(status.latest.current, next, true));
    for (const remote of [status, why, ran]) remote.reload();
  };
  return (
    <Frame title={simulation.name}>
      <SimulationHead
        app={app}
        sid={sid}
        model={model}
        simulation={simulation}
        stored={props.stored}
        status={now}
        jid={jid}
        onStored={props.onStored}
        onModel={(name) => onView({ model: name, frame: -1 })}
        onChanged={() => [status, why].map((r) => r.reload())}
      />
      <div class="workbench">
        <div class="stage">
          {status.error && <ErrorMessage error={status.error} again={status.reload} />}
          <Said status={now} why={why.data} isRun={isRun} onSignIn={setNeed} />
          <Results run={run} model={model} status={now} view={view} onView={onView} />
          <Panels
            app={app}
            run={run}
            jid={jid}
            status={now}
            isRun={isRun}
            view={view}
            log={log.state}
            onView={onView}
          />
        </div>
        <ValuesForm
          app={app}
          sid={sid}
          model={model}
          stored={props.stored}
          run={run}
          simulation={simulation}
          ran={ran.data}
          clusters={clusters.data ?? []}
          onStored={props.onStored}
          onStarted={onStarted}
          onSignIn={setNeed}
        />
      </div>
      {need && (
        <ClusterSignIn
          need={need}
          onClose={() => setNeed(undefined)}
          onSignedIn={() => [status, why, clusters].map((r) => r.reload())}
        />
      )}
    </Frame>
  );
}

const jobView = (view: SimulationView): JobView => ({
  tab: view.panel === "log" ? "log" : "files",
  stream: view.stream,
  attempt: 0,
  role: "",
  index: 0,
  edit: false,
  file: "",
});

/** Return the values with which the newest run was started. */
function valuesRun(story: Story, model: Model): Values {
  const specs = story.events.map((e) => e.event).filter((e) => e.type === "RunRequested");
  return completed(model, specs.at(-1)?.spec?.data?.models?.[model.name]);
}

/** Where the site has no stream, a run is asked for as often as it says. */
function useFastAsk(status: AppStatus | undefined, reload: () => void): void {
  const isAsking = link.value === "asking" || link.value === "full";
  const secs = status && isActive(status.state) ? (status.nextRequestSeconds ?? 2) : 0;
  useEffect(() => {
    if (!isAsking || !secs) return;
    const timer = setInterval(reload, Math.max(1, secs) * 1000);
    return () => clearInterval(timer);
  }, [isAsking, secs]);
}

/** What is to be said of the run: why it waits or failed; nothing where its state says it all. */
function Said(props: {
  status: AppStatus;
  why: WhyReply | undefined;
  isRun: boolean;
  onSignIn: (need: SignInNeed) => void;
}): JSX.Element | null {
  const { status, why, isRun } = props;
  if (!isRun) return null;
  const line = sentenceOf(status);
  const { signIn } = status;
  // the button comes first, so that it does not move when the explanation arrives
  return (
    <>
      {signIn && isActive(status.state) && (
        <div class="buttons">
          <button
            type="button"
            class="main"
            onClick={() => props.onSignIn({ ...signIn, reason: "no-creds" })}
          >
            Sign in to {signIn.cluster ?? "the cluster"}
          </button>
        </div>
      )}
      {["error", "canceled"].includes(status.state) ||
      (status.state === "pending" && (why || status.jobStatusMessage)) ? (
        <WhyCard why={withOwnReason(status, why)} status={status as unknown as Status} />
      ) : (
        line && (
          <p class="card note" role="status">
            {line}
          </p>
        )
      )}
      {status.alert && (
        <p class="card note warning" role="status">
          {sentence(status.alert)}
        </p>
      )}
    </>
  );
}

/** Return the explanation with the sentence of the app, if it has one, in the first place. */
function withOwnReason(status: AppStatus, why: WhyReply | undefined): WhyReply | undefined {
  const { error } = status;
  const isOwn = error && !/^(exit code|ended by signal) \d/.test(error);
  if (!isOwn || !why) return why;
  const evidence = [why.sentence ?? "", ...(why.evidence ?? [])].filter(Boolean);
  return { ...why, sentence: error, evidence, lastLines: null };
}

function Results(props: {
  run: RunOf;
  model: Model;
  status: AppStatus;
  view: SimulationView;
  onView: (part: Partial<SimulationView>, replace?: boolean) => void;
}): JSX.Element | null {
  const { run, model, status, view, onView } = props;
  if (!status.computeJobSerial) {
    return (
      <div class="message">
        <p>
          <strong>No results yet.</strong> Set the values, then start the simulation.
        </p>
      </div>
    );
  }
  if (model.kind === "sequential") return <Result status={status} model={model} />;
  const { computeJobHash: hash, computeJobSerial: serial } = status;
  if (!hash || !status.frameCount)
    return status.state === "running" ? <NoFrames model={model} /> : null;
  return (
    <Frames
      run={{ ...run, hash, serial }}
      model={model}
      count={status.frameCount}
      frame={view.frame}
      onGo={(frame) => onView({ frame }, true)}
    />
  );
}
