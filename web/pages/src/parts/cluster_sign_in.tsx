/**
 * The dialog in which a user signs in to a cluster. What is typed is read from the form when it is
 * sent, once, and is kept nowhere.
 */

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, postOnce, unreadable } from "../api.ts";
import { type SignInNeed, signInSentence } from "../text/cluster_sign_in.ts";
import { sentence } from "../text/format.ts";
import { Dialog } from "./dialog.tsx";

/** What a cluster may take to let somebody in. */
const PATIENCE_MS = 180_000;

const SECRETS = ["password", "otp", "privateKey", "passphrase", "certificate"];

interface LoginReply {
  loginSuccess?: boolean;
  srException?: { params?: SignInNeed };
}

/** need: as in the `srException` or `signIn` of a run, or with a cluster alone. */
export function ClusterSignIn(props: {
  need: SignInNeed;
  onSignedIn: () => void;
  onClose: () => void;
}): JSX.Element {
  const { need } = props;
  const form = useRef<HTMLFormElement>(null);
  const open = useRef(true);
  const attempted = useRef(false);
  const [busy, setBusy] = useState(false);
  const [wrong, setWrong] = useState(signInSentence(need));
  useEffect(
    () => () => {
      open.current = false;
    },
    [],
  );

  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    const request = taken(form.current, need);
    if (!request) return;
    attempted.current = true;
    setBusy(true);
    setWrong("");
    const said = await sent(request);
    if (!open.current) return;
    setBusy(false);
    if (said === "") {
      props.onClose();
      props.onSignedIn();
      return;
    }
    setWrong(said);
  };
  useEffect(() => {
    // after an attempt; a field that is disabled takes no focus
    if (attempted.current && !busy)
      form.current?.querySelector<HTMLInputElement>("[name=password]")?.focus();
  }, [busy]);

  return (
    <Dialog title={`Sign in to ${need.cluster ?? "the cluster"}`} onClose={props.onClose}>
      <form ref={form} onSubmit={(event) => void submit(event)} autoComplete="off">
        <p class="soft">
          This goes once to <strong>{need.host ?? need.cluster ?? "the cluster"}</strong> and is not
          stored. Jobs that wait for the sign-in go on.
        </p>
        {wrong && (
          <p class="problem" role="alert">
            {wrong}
          </p>
        )}
        <label>
          User name there
          <input
            name="username"
            required
            maxLength={128}
            autoComplete="username"
            autoCapitalize="none"
            spellcheck={false}
            disabled={busy}
          />
        </label>
        <label>
          Password
          <input name="password" type="password" autoComplete="off" disabled={busy} />
        </label>
        <label>
          One-time code, if the cluster asks for one
          <input
            name="otp"
            inputMode="numeric"
            autoComplete="one-time-code"
            spellcheck={false}
            disabled={busy}
          />
        </label>
        <details>
          <summary>With a private key</summary>
          <label>
            Private key
            <textarea
              name="privateKey"
              rows={4}
              autoComplete="off"
              spellcheck={false}
              placeholder="-----BEGIN OPENSSH PRIVATE KEY-----"
              disabled={busy}
            />
          </label>
          <label>
            Passphrase of the key, if it has one
            <input name="passphrase" type="password" autoComplete="off" disabled={busy} />
          </label>
          <label>
            Certificate, if the cluster wants one
            <textarea
              name="certificate"
              rows={2}
              autoComplete="off"
              spellcheck={false}
              disabled={busy}
            />
          </label>
        </details>
        <div class="buttons">
          <button type="submit" class="main" disabled={busy}>
            {busy ? "Signing in …" : "Sign in"}
          </button>
          <button type="button" onClick={props.onClose}>
            Not now
          </button>
        </div>
        {busy && (
          <p class="soft" role="status">
            The cluster may take a minute.
          </p>
        )}
      </form>
    </Dialog>
  );
}

/** Return the request of what was typed, and empty the secret fields at once. */
function taken(form: HTMLFormElement | null, need: SignInNeed): object | null {
  if (!form?.reportValidity()) return null;
  const field = (name: string): HTMLInputElement | null =>
    form.querySelector<HTMLInputElement>(`[name=${name}]`);
  const value = (name: string): string => field(name)?.value ?? "";
  const sbatchCredentials: Record<string, string> = {
    username: value("username").trim(),
    password: value("password"),
    otp: value("otp").trim(),
  };
  for (const name of ["privateKey", "passphrase", "certificate"]) {
    if (value(name).trim()) sbatchCredentials[name] = value(name);
  }
  for (const name of SECRETS) {
    const secret = field(name);
    if (secret) secret.value = "";
  }
  const { cluster, simulationType, simulationId, report } = need;
  return { cluster, simulationType, simulationId, report, sbatchCredentials };
}

/** Send the request once. Return "" after a sign-in, otherwise a sentence. */
async function sent(request: object): Promise<string> {
  try {
    const said = await postOnce<LoginReply>("/sbatch-login", request, PATIENCE_MS);
    return said.loginSuccess ? "" : signInSentence(said.srException?.params ?? {}, true);
  } catch (thrown) {
    const error = thrown instanceof ApiError ? thrown : unreadable();
    return `${sentence(error.message)} ${sentence(error.advice)}`;
  }
}
