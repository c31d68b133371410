/** Name, state, times and actions of a simulation. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { useLocation } from "preact-iso";
import {
  type AppInfo,
  type AppStatus,
  deleteLibFile,
  fileOf,
  type Model,
  newSid,
  saveSimulation,
  simulationPath,
} from "../apps.ts";
import { CancelDialog } from "../cancel.tsx";
import { now } from "../clock.ts";
import { isActive } from "../jobs.ts";
import { store } from "../save_values.ts";
import { jobPath, path } from "../site.ts";
import { batchText, progressText } from "../text/app_status.ts";
import { duration, moment } from "../text/format.ts";
import type { Simulation, StoredSimulation } from "../text/simulation.ts";
import { Dialog } from "./dialog.tsx";
import { Icon } from "./icons.tsx";
import { said } from "./library.tsx";
import { StateBadge } from "./state.tsx";

interface HeadProps {
  app: AppInfo;
  sid: string;
  model: Model;
  simulation: Simulation;
  stored: StoredSimulation;
  status: AppStatus;
  jid: string;
  onStored: (stored: StoredSimulation) => void;
  onModel: (name: string) => void;
  onChanged: () => void;
}

export function SimulationHead(props: HeadProps): JSX.Element {
  const { app, model, simulation, status, jid } = props;
  const models = app.models ?? [];
  const isRun = Boolean(status.computeJobSerial);
  const [renaming, setRenaming] = useState(false);
  return (
    <header class="job-head">
      <p class="crumb">
        <a href={path("/apps")}>Apps</a> <span aria-hidden="true">/</span>{" "}
        <a href={path(`/apps?app=${app.name}`)}>{app.title ?? app.name}</a>
      </p>
      <div class="page-head">
        <h1>{simulation.name}</h1>
        <button
          type="button"
          class="plain copy"
          aria-label="Rename"
          onClick={() => setRenaming(true)}
        >
          <Icon name="edit" />
        </button>
        {isRun && <StateBadge state={status.state} />}
        {models.length > 1 && (
          <label class="inline">
            Model
            <select value={model.name} onChange={(e) => props.onModel(e.currentTarget.value)}>
              {models.map((m) => (
                <option value={m.name} key={m.name}>
                  {m.title}
                </option>
              ))}
            </select>
          </label>
        )}
        <Actions {...props} />
      </div>
      {isRun && <Facts status={status} jid={jid} />}
      {renaming && <Rename {...props} onClose={() => setRenaming(false)} />}
    </header>
  );
}

function Facts({ status, jid }: { status: AppStatus; jid: string }): JSX.Element {
  const { computeJobQueued: queued, computeJobStart: started, computeJobEnd: ended } = status;
  const facts: [string, string][] = [];
  const progress = progressText(status);
  if (progress) facts.push(["Progress", progress]);
  if (queued) facts.push(["Queued", moment(queued)]);
  if (started) facts.push(["Started", moment(started)]);
  if (ended) facts.push(["Ended", moment(ended)]);
  if (started) facts.push(["Duration", duration((ended ?? now.value) - started)]);
  else if (status.state === "pending" && queued) {
    facts.push(["Waiting for", duration(now.value - queued)]);
  }
  const batch = batchText(status);
  if (batch) facts.push(["Cluster", batch]);
  const percent = status.state === "running" ? status.percentComplete : undefined;
  return (
    <>
      <dl class="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd class="number">{value}</dd>
          </div>
        ))}
        <div>
          <dt>Run</dt>
          <dd>
            <a href={jobPath(jid)}>Tasks, timeline, usage</a>
          </dd>
        </div>
      </dl>
      {percent !== undefined && (
        <progress class="run-progress" max={100} value={percent} aria-label="Progress" />
      )}
    </>
  );
}

function Actions(props: HeadProps): JSX.Element {
  const { app, sid, model, simulation, status, jid } = props;
  const { route } = useLocation();
  const [asking, setAsking] = useState<"cancel" | "delete" | undefined>();
  const close = (): void => setAsking(undefined);
  const duplicate = async (): Promise<void> => {
    const copy = newSid();
    const name = `${simulation.name} (copy)`.slice(0, 200);
    const saved = { ...simulation, name, model: model.name };
    if (await said("It is not duplicated.", () => saveSimulation(app.name, copy, saved)))
      route(simulationPath(app.name, copy));
  };
  const remove = async (): Promise<void> => {
    close();
    if (await said("It is not deleted.", () => deleteLibFile(app.name, fileOf(sid))))
      route(path("/apps"));
  };
  return (
    <div class="buttons actions">
      {isActive(status.state) && Boolean(status.computeJobSerial) && (
        <button type="button" class="danger" onClick={() => setAsking("cancel")}>
          Cancel …
        </button>
      )}
      <button type="button" disabled={!props.stored.found} onClick={() => void duplicate()}>
        Duplicate
      </button>
      <button type="button" disabled={!props.stored.found} onClick={() => setAsking("delete")}>
        Delete …
      </button>
      {asking === "cancel" && (
        <CancelDialog jids={[jid]} onClose={close} onDone={props.onChanged} />
      )}
      {asking === "delete" && (
        <Dialog title="Delete this simulation?" onClose={close}>
          <p class="soft">
            Its name and values are deleted. Its runs stay on the page of jobs until they are
            cleared away.
          </p>
          <div class="buttons">
            <button type="button" class="danger" onClick={() => void remove()}>
              Delete
            </button>
            <button type="button" onClick={close}>
              Keep
            </button>
          </div>
        </Dialog>
      )}
    </div>
  );
}

function Rename(props: HeadProps & { onClose: () => void }): JSX.Element {
  const { app, sid, simulation, model } = props;
  const [name, setName] = useState(simulation.name);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    props.onClose();
    const renamed = (found = simulation): Simulation => ({
      ...found,
      model: model.name,
      name: name.trim(),
    });
    await said("It is not renamed.", async () => {
      const [stored] = await store(app.name, sid, props.stored, renamed);
      props.onStored(stored);
    });
  };
  return (
    <Dialog title="Rename" onClose={props.onClose}>
      <form onSubmit={(e) => void submit(e)}>
        <label>
          Name
          <input
            name="name"
            required
            maxLength={200}
            pattern=".*\S.*"
            value={name}
            onInput={(e) => setName(e.currentTarget.value)}
          />
        </label>
        <div class="buttons">
          <button type="submit" class="main">
            Rename
          </button>
          <button type="button" onClick={props.onClose}>
            Keep
          </button>
        </div>
      </form>
    </Dialog>
  );
}
