/** The values of a simulation: edited, saved, and started. */

import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { ApiError } from "../api.ts";
import {
  type AppInfo,
  type AppStatus,
  type Cluster,
  type Model,
  type RunOf,
  saveSimulation,
  start,
  type Values,
} from "../apps.ts";
import { keep, loadKept, tabStore } from "../kept.ts";
import type { SignInNeed } from "../text/cluster_sign_in.ts";
import { faultsOf, PLACES, type Texts, textsOf, valuesFrom } from "../text/form.ts";
import { sentence } from "../text/format.ts";
import {
  areEqual,
  completed,
  defaultsOf,
  namedField,
  type Simulation,
} from "../text/simulation.ts";
import { notify } from "./frame.tsx";
import { said } from "./library.tsx";
import { ErrorMessage } from "./messages.tsx";
import { Fields } from "./simulation_form.tsx";

/** What was typed and is not stored stays in this tab: nothing is lost with a session. */
const draftName = (run: RunOf): string => `values ${run.simulationId} ${run.report}`;

function readDraft(run: RunOf): Texts | undefined {
  const found = loadKept(tabStore(), draftName(run));
  return found && typeof found === "object" ? (found as Texts) : undefined;
}

const writeDraft = (run: RunOf, texts: Texts | undefined): void =>
  void keep(tabStore(), draftName(run), texts);

export function ValuesForm(props: {
  app: AppInfo;
  sid: string;
  model: Model;
  run: RunOf;
  simulation: Simulation;
  isStored: boolean;
  /** The values of the newest run. */
  ran: Values | undefined;
  clusters: Cluster[];
  onStored: (stored: Simulation) => void;
  onStarted: (status: AppStatus) => void;
  onSignIn: (need: SignInNeed) => void;
}): JSX.Element {
  const { app, sid, model, run, simulation, ran, clusters } = props;
  const kept = completed(model, simulation.models[model.name] ?? ran);
  const [texts, setTexts] = useState<Texts>(() => ({ ...textsOf(model, kept), ...readDraft(run) }));
  const [faults, setFaults] = useState<ReadonlyMap<string, string>>(new Map());
  const [refused, setRefused] = useState<ApiError | undefined>();
  const [busy, setBusy] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  const values = valuesFrom(model, clusters, texts);
  const isSaved = props.isStored && areEqual(values, kept);

  const show = (next: Texts): void => {
    setTexts(next);
    setFaults(new Map());
    setRefused(undefined);
    writeDraft(run, next);
  };
  const mark = (next: ReadonlyMap<string, string>): void => {
    setFaults(next);
    const [first] = next.keys();
    form.current?.querySelector<HTMLElement>(`#field-${first}`)?.focus();
  };
  const save = async (): Promise<void> => {
    const models = { ...simulation.models, [model.name]: values };
    const saved = { ...simulation, model: model.name, models };
    await saveSimulation(app.name, sid, saved);
    writeDraft(run, undefined);
    props.onStored(saved);
  };
  const begin = async (force: boolean): Promise<void> => {
    const wrong = faultsOf(model, clusters, texts);
    if (wrong.size) return mark(wrong);
    setBusy(true);
    setRefused(undefined);
    try {
      if (!isSaved) await save();
      const sentAt = Date.now() / 1000;
      const { status, signIn } = await start(run, simulation, values, force);
      props.onStarted(status);
      if (signIn) props.onSignIn(signIn);
      if (status.quotaWarning) notify(sentence(status.quotaWarning), true);
      if (!force && isEarlier(status, sentAt)) tellEarlier();
    } catch (error) {
      tell(error);
    }
    setBusy(false);
  };
  const tellEarlier = (): void =>
    notify("These values were computed before; this is their result.", false, {
      label: "Compute again",
      run: () => void begin(true),
    });
  /** A refusal that names a field is shown there. */
  const tell = (error: unknown): void => {
    if (!(error instanceof ApiError)) throw error;
    const named = namedField(error.message);
    if (named && named[0] in { ...texts, ...PLACES })
      mark(new Map([[named[0], sentence(named[1])]]));
    else setRefused(error);
  };
  const differs = ran && !areEqual(ran, completed(model, onlyFields(model, values)));
  return (
    <form
      ref={form}
      class="card values"
      aria-label="Values"
      noValidate
      onSubmit={(e) => {
        e.preventDefault();
        void begin(false);
      }}
    >
      <div class="values-head">
        <h2>Values</h2>
        <span class="soft note" role="status">
          {isSaved ? "Saved" : "Not saved"}
        </span>
      </div>
      {refused && <ErrorMessage error={refused} />}
      <div class="value-fields">
        <Fields
          model={model}
          clusters={clusters}
          texts={texts}
          faults={faults}
          onChange={(name, text) => show({ ...texts, [name]: text })}
        />
      </div>
      {differs && (
        <p class="soft note">
          The shown results have other values.{" "}
          <button
            type="button"
            class="plain"
            onClick={() => show({ ...texts, ...textsOf(model, ran) })}
          >
            Use those values
          </button>
        </p>
      )}
      <div class="buttons values-foot">
        <button type="submit" class="main" disabled={busy}>
          {busy ? "Starting …" : "Start"}
        </button>
        <button
          type="button"
          disabled={isSaved || busy}
          onClick={() => {
            const wrong = faultsOf(model, clusters, texts);
            if (wrong.size) return mark(wrong);
            void said("The values are not saved.", save);
          }}
        >
          Save
        </button>
        <button type="button" class="plain" onClick={() => show(textsOf(model, defaultsOf(model)))}>
          Defaults
        </button>
      </div>
    </form>
  );
}

/** Return whether the run was completed before it was asked for. */
const isEarlier = (status: AppStatus, sentAt: number): boolean =>
  status.state === "completed" && (status.computeJobEnd ?? sentAt) < sentAt - 1;

const onlyFields = (model: Model, values: Values): Values =>
  Object.fromEntries(model.fields.map((f) => [f.name, values[f.name] ?? f.default]));
