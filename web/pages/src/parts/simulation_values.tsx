/** The values of a simulation: edited, saved, and started. */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "../api.ts";
import {
  type AppInfo,
  type AppStatus,
  type Cluster,
  loadStored,
  type Model,
  type RunOf,
  start,
  type Values,
} from "../apps.ts";
import { keep, loadKept, tabStore } from "../kept.ts";
import { storeValues, watchStored } from "../save_values.ts";
import type { SignInNeed } from "../text/cluster_sign_in.ts";
import { faultsOf, PLACES, type Texts, textsOf, valuesFrom } from "../text/form.ts";
import { sentence } from "../text/format.ts";
import {
  areEqual,
  completed,
  defaultsOf,
  namedField,
  type Simulation,
  type StoredSimulation,
} from "../text/simulation.ts";
import { notify } from "./frame.tsx";
import { said } from "./library.tsx";
import { ErrorMessage } from "./messages.tsx";
import { Fields } from "./simulation_form.tsx";

/** What was typed and is not stored stays in this tab: nothing is lost with a session. tag: of what was
 * stored when it was typed. */
interface Draft {
  texts: Texts;
  tag: string;
}

const draftName = (run: RunOf): string => `typed ${run.simulationId} ${run.report}`;

function readDraft(run: RunOf): Draft | undefined {
  const found = loadKept(tabStore(), draftName(run)) as Partial<Draft> | undefined;
  if (typeof found?.texts !== "object" || found.texts === null) return undefined;
  return { texts: found.texts, tag: typeof found.tag === "string" ? found.tag : "" };
}

const writeDraft = (run: RunOf, draft: Draft | undefined): void =>
  void keep(tabStore(), draftName(run), draft);

export function ValuesForm(props: {
  app: AppInfo;
  sid: string;
  model: Model;
  run: RunOf;
  simulation: Simulation;
  stored: StoredSimulation;
  /** The values of the newest run. */
  ran: Values | undefined;
  clusters: Cluster[];
  onStored: (stored: StoredSimulation) => void;
  onStarted: (status: AppStatus) => void;
  onSignIn: (need: SignInNeed) => void;
}): JSX.Element {
  const { app, sid, model, run, simulation, stored, ran, clusters } = props;
  const kept = completed(model, simulation.models[model.name] ?? ran);
  const [draft] = useState(() => readDraft(run));
  const [texts, setTexts] = useState<Texts>(() => ({ ...textsOf(model, kept), ...draft?.texts }));
  /** What is stored now, while it differs from what was stored when the values were typed. */
  const [other, setOther] = useState<StoredSimulation | undefined>(() =>
    draft?.tag && draft.tag !== stored.tag ? stored : undefined,
  );
  /** The tag of what was stored when the values were typed. */
  const base = useRef(draft?.tag || stored.tag);
  if (!other) base.current = stored.tag;
  const [faults, setFaults] = useState<ReadonlyMap<string, string>>(new Map());
  const [refused, setRefused] = useState<ApiError | undefined>();
  const [busy, setBusy] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  const values = valuesFrom(model, clusters, texts);
  const isSaved = stored.found !== undefined && areEqual(values, kept);
  const typed = useRef({ isSaved, stored, simulation, kept });
  typed.current = { isSaved, stored, simulation, kept };
  useEffect(
    () =>
      watchStored(app.name, sid, () => {
        void loadStored(app.name, sid).then(
          (found) => hear(found),
          () => {}, // saving will tell
        );
      }),
    [],
  );
  /** Take what was stored elsewhere, unless something is typed that is not stored. */
  const hear = (found: StoredSimulation): void => {
    const last = typed.current;
    if (found.tag === last.stored.tag || !found.tag) return;
    const theirs = completed(model, found.found?.models[model.name]);
    const isSame = found.found !== undefined && areEqual(theirs, last.kept);
    if (isSame) props.onStored(found);
    else if (last.isSaved && found.found) take(found);
    else setOther(found);
  };
  const take = (found: StoredSimulation): void => {
    const theirs = completed(model, found.found?.models[model.name]);
    setTexts(textsOf(model, theirs));
    setFaults(new Map());
    setRefused(undefined);
    setOther(undefined);
    writeDraft(run, undefined);
    props.onStored(found);
  };
  /** What is typed stays, and will be stored over the other values. */
  const keepTyped = (found: StoredSimulation): void => {
    setOther(undefined);
    writeDraft(run, { texts, tag: found.tag });
    props.onStored(found);
  };

  const show = (next: Texts): void => {
    setTexts(next);
    setFaults(new Map());
    setRefused(undefined);
    writeDraft(run, { texts: next, tag: base.current });
  };
  const mark = (next: ReadonlyMap<string, string>): void => {
    setFaults(next);
    const [first] = next.keys();
    form.current?.querySelector<HTMLElement>(`#field-${first}`)?.focus();
  };
  /** Return whether the values are stored: others may have been stored elsewhere. */
  const save = async (): Promise<boolean> => {
    const [next, isDone] = await storeValues(app.name, sid, stored, simulation, model, values);
    if (isDone) {
      writeDraft(run, undefined);
      props.onStored(next);
    } else setOther(next);
    return isDone;
  };
  const begin = async (force: boolean): Promise<void> => {
    const wrong = faultsOf(model, clusters, texts);
    if (wrong.size) return mark(wrong);
    setBusy(true);
    setRefused(undefined);
    try {
      if (!isSaved && !(await save())) {
        setBusy(false);
        return;
      }
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
      {other && (
        <div class="message elsewhere" role="alert">
          <p>
            <strong>
              {other.found
                ? "These values were changed elsewhere, in another tab or on another machine."
                : "This simulation was deleted elsewhere."}
            </strong>{" "}
            What you typed is still here.
          </p>
          <div class="buttons">
            {other.found && (
              <button type="button" onClick={() => take(other)}>
                Take those values
              </button>
            )}
            <button type="button" onClick={() => keepTyped(other)}>
              Keep mine
            </button>
          </div>
        </div>
      )}
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
        <button type="submit" class="main" disabled={busy || other !== undefined}>
          {busy ? "Starting …" : "Start"}
        </button>
        <button
          type="button"
          disabled={isSaved || busy || other !== undefined}
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
