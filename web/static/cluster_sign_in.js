// The dialog in which a user signs in to a cluster. What is typed is sent once, is taken out of the form as soon as it is sent, and is
// kept nowhere. Says to which host it goes, and what the other side answers.

import { ApiError, post } from "./api.js";
import { byId, setText } from "./dom.js";
import { sentenceOf } from "./words.js";

/** What a cluster may take to let somebody in, milliseconds. */
const PATIENCE_MS = 180000;
const REASONS = {
  "invalid-creds": "The cluster has refused this. Wait for the next code before you try again.",
  "general-connection-error": "The cluster cannot be reached at the moment.",
};

/** onSignedIn(params): what was to be signed in for goes on. Returns {open(params), close()}; params: as in an srException. */
export function clusterSignIn({ onSignedIn }) {
  const dialog = byId("cluster-sign-in");
  const [user, password, code] = ["cluster-user", "cluster-password", "cluster-code"].map(byId);
  let about = {};
  let attempt = 0;

  function open(params) {
    about = params;
    attempt += 1;
    forget();
    setText(byId("cluster-name"), params.cluster ?? "");
    setText(byId("cluster-host"), params.host ?? params.cluster ?? "");
    say(params.reason === "no-creds" ? "" : sentenceFor(params));
    busy(false);
    if (!dialog.open) dialog.showModal();
    (user.value ? password : user).focus();
  }

  /** Nothing that was typed stays in the page. */
  function forget() {
    password.value = "";
    code.value = "";
  }

  function close() {
    attempt += 1;
    forget();
    if (dialog.open) dialog.close();
  }

  function say(sentence) {
    setText(byId("cluster-wrong"), sentence);
    byId("cluster-wrong").hidden = !sentence;
  }

  function busy(is) {
    for (const control of [user, password, code, byId("cluster-enter")]) control.disabled = is;
    byId("cluster-busy").hidden = !is;
  }

  async function submit() {
    const mine = attempt;
    const sbatchCredentials = { username: user.value, password: password.value, otp: code.value.trim() };
    const { cluster, simulationType, simulationId, report } = about;
    forget();
    say("");
    busy(true);
    let wrong;
    try {
      const said = await post("sbatch-login", { cluster, simulationType, simulationId, report, sbatchCredentials }, PATIENCE_MS);
      if (mine !== attempt) return;
      if (said.loginSuccess) {
        const params = about;
        close();
        return onSignedIn(params);
      }
      wrong = sentenceFor(said.srException?.params ?? {});
    } catch (error) {
      if (!(error instanceof ApiError)) console.error(error);
      wrong = error instanceof ApiError ? sentenceOf(error.message) : "Something went wrong in this page. Load it again.";
    }
    if (mine !== attempt) return;
    busy(false);
    say(wrong);
    password.focus();
  }

  byId("cluster-form").addEventListener("submit", (event) => {
    event.preventDefault();
    user.value = user.value.trim();
    if (user.reportValidity()) submit();
  });
  byId("cluster-cancel").addEventListener("click", close);
  // also by the key Escape
  dialog.addEventListener("close", () => { attempt += 1; forget(); });
  return { open, close };
}

function sentenceFor({ reason, sentence, advice }) {
  return sentence ? [sentence, advice].filter(Boolean).map(sentenceOf).join(" ") : (REASONS[reason] ?? "This did not work.");
}
