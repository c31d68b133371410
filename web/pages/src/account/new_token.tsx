/** The dialog for a new API token. Its text is only in this dialog, and goes with it. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { data } from "../api.ts";
import { useKept } from "../kept.ts";
import { me } from "../me.ts";
import { Copy } from "../parts/copy.tsx";
import { Dialog } from "../parts/dialog.tsx";
import { site } from "../site.ts";
import { isDone, useAction } from "./action.tsx";

const SCOPES: [string, string][] = [
  ["read", "see states, output and files of your jobs"],
  ["control", "submit and cancel jobs, change your files, create tokens"],
  ["debug", "see and stop your agents, open shells"],
  ["admin", "use your role as an administrator"],
];
const DAY_SECS = 86_400;
const LIFETIMES: [number, string][] = [
  [7, "7 days"],
  [30, "30 days"],
  [90, "90 days"],
  [365, "1 year"],
];

/** onEnd: a token was created, or may have been: its answer was lost. */
export function NewToken(props: { onClose: () => void; onEnd: () => void }): JSX.Element {
  const [secret, setSecret] = useState("");
  return (
    <Dialog title={secret ? "Your new token" : "New token"} onClose={props.onClose}>
      {secret ? (
        <Created secret={secret} onClose={props.onClose} />
      ) : (
        <Form onClose={props.onClose} onCreated={setSecret} onEnd={props.onEnd} />
      )}
    </Dialog>
  );
}

function Form(props: {
  onClose: () => void;
  onCreated: (secret: string) => void;
  onEnd: () => void;
}): JSX.Element {
  const [name, setName, forget] = useKept("token-name");
  const [scopes, setScopes] = useState<string[]>(["read", "control"]);
  const [days, setDays] = useState(90);
  const action = useAction();
  const may = SCOPES.filter(([scope]) => scope !== "admin" || me.value.scopes.includes("admin"));
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    const body = { name: name.trim(), scopes, expiresSecs: days * DAY_SECS };
    const said = await action.run(() => data<{ secret: string }>("token-create", body));
    props.onEnd();
    if (!isDone(said)) return;
    forget();
    props.onCreated(said.secret);
  };
  const toggle = (scope: string): void =>
    setScopes((had) => (had.includes(scope) ? had.filter((s) => s !== scope) : [...had, scope]));
  return (
    <form onSubmit={(event) => void submit(event)}>
      <label>
        Name
        <input
          name="name"
          required
          maxLength={64}
          placeholder="laptop of ann"
          value={name}
          onInput={(e) => setName(e.currentTarget.value)}
        />
      </label>
      <fieldset>
        <legend>It may</legend>
        {may.map(([scope, about]) => (
          <label class="choice" key={scope}>
            <input
              type="checkbox"
              checked={scopes.includes(scope)}
              onChange={() => toggle(scope)}
            />
            <span>
              <strong>{scope}</strong> <span class="soft">{about}</span>
            </span>
          </label>
        ))}
      </fieldset>
      <label>
        Valid for
        <select value={days} onChange={(e) => setDays(Number(e.currentTarget.value))}>
          {LIFETIMES.map(([count, label]) => (
            <option value={count} key={count}>
              {label}
            </option>
          ))}
        </select>
      </label>
      {action.problem}
      <div class="buttons">
        <button type="submit" class="main" disabled={action.busy || scopes.length === 0}>
          Create token
        </button>
        <button type="button" onClick={props.onClose}>
          Not now
        </button>
      </div>
    </form>
  );
}

function Created({ secret, onClose }: { secret: string; onClose: () => void }): JSX.Element {
  const line = `jobscribe auth login --with-token ${site.api || "ADDRESS"}`;
  return (
    <div class="created">
      <p>
        <strong>Copy it now: it is shown only this once.</strong> Who has it can act for you.
      </p>
      <div class="secret">
        <code>{secret}</code>
        <Copy text={secret} label="Copy the token" />
      </div>
      <p class="soft">On the other machine, run this line and paste the token when it asks:</p>
      <div class="secret">
        <code>{line}</code>
        <Copy text={line} label="Copy the command" />
      </div>
      {!site.api && <p class="soft">Your operator knows the address of this site for commands.</p>}
      <div class="buttons">
        <button type="button" class="main" onClick={onClose}>
          I have copied it
        </button>
      </div>
    </div>
  );
}
