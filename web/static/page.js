// The page: who is signed in, the form, the list of runs, and the run that is shown. Puts the other modules together; what is heard
// goes to the store of runs, and what is shown follows from it.

import { ApiError, address, get, post, randomWord } from "./api.js";
import { byId, element, setText } from "./dom.js";
import { fieldsForm } from "./form.js";
import { framesView } from "./frames.js";
import { openLive } from "./live.js";
import { logView } from "./log.js";
import { clusterSignIn } from "./cluster_sign_in.js";
import { runsStore, valuesOf } from "./runs.js";
import { whereForm } from "./where.js";
import { whyView } from "./why.js";
import { batchOf, duration, isActive, moment, sentence, sentenceOf, stateName, tone } from "./words.js";

const LINKS = { live: "live", asking: "asking every few seconds", lost: "no connection; trying again" };

let apps = new Map();
let shown = null;
let form = null;
let live = null;
let filesOf = "";

const frames = framesView();
const why = whyView();
const log = logView({ onWish: () => live?.reopen(), onError: showError });
const signIn = clusterSignIn({ onSignedIn: signedIn });
const store = runsStore({ onChange: changed, onError: showError, onSignIn: (params) => signIn.open(params) });
const where = whereForm();

// ---- notices

/** Anything that went wrong, as a person can read it. What is not a refusal is a mistake of this page: the console has it. */
function showError(error) {
  if (error instanceof ApiError && error.isNobody) return welcome();
  if (!(error instanceof ApiError)) console.error(error);
  const said = error instanceof ApiError ? error : { message: "something went wrong in this page", advice: "load it again" };
  const close = element("button", { type: "button", className: "quiet" }, "Close");
  const notice = element("div", { className: "notice", role: "alert" },
    element("div", {}, element("strong", {}, sentenceOf(said.message)), element("p", {}, sentenceOf(said.advice))), close);
  close.addEventListener("click", () => notice.remove());
  byId("notices").replaceChildren(notice);
}

const clearNotices = () => byId("notices").replaceChildren();

/** Does it, with the button out of reach meanwhile; a refusal becomes a notice. */
async function withButton(button, action) {
  button.disabled = true;
  clearNotices();
  try {
    await action();
  } catch (error) {
    showError(error);
  } finally {
    button.disabled = false;
  }
}

// ---- who is signed in

function welcome() {
  leave();
  byId("bench").hidden = true;
  byId("who").hidden = true;
  byId("link").hidden = true;
  byId("welcome").hidden = false;
  byId("name").focus();
}

function leave() {
  signIn.close();
  live?.close();
  live = null;
  store.clear();
  shown = null;
  frames.clear();
  log.show(null);
  byId("shown").hidden = true;
  byId("empty").hidden = false;
  byId("runs").replaceChildren();
  clearNotices();
}

/** name: null where the site signs its users in and out by itself. */
async function enter(name) {
  setText(byId("user"), name ?? "");
  byId("welcome").hidden = true;
  byId("who").hidden = name === null;
  byId("link").hidden = false;
  byId("bench").hidden = false;
  // an agent gets ready while the form is filled in
  post("begin-session").catch(() => {});
  const found = (await get("apps")).apps;
  apps = new Map(found.map((app) => [app.name, app]));
  drawApps();
  where.offer((await get("clusters")).clusters);
  await store.load(apps);
  drawRuns();
  live = openLive({ query: () => log.wish(), onEvent: heard, onLink: linked });
  const newest = store.all()[0];
  if (newest) select(newest);
}

byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  withButton(event.submitter ?? byId("name"), async () => {
    const { name } = await post("sign-in", { name: byId("name").value.trim() });
    await enter(name);
  });
});

byId("sign-out").addEventListener("click", (event) =>
  withButton(event.currentTarget, async () => {
    await post("sign-out");
    welcome();
  }));

// ---- the stream of news

function heard(name, data) {
  if (name === "status") {
    const run = store.hear(data);
    if (!run && data.state !== "missing") store.load(apps).then(drawRuns, showError);
  } else if (name === "progress") {
    store.progressed(data);
  } else if (name === "log") {
    log.piece(data);
  }
}

function linked(state, error) {
  const link = byId("link");
  link.dataset.link = state;
  setText(link, LINKS[state]);
  if (error instanceof ApiError && error.isNobody) return welcome();
  if (!(error instanceof ApiError) && error instanceof SyntaxError) console.error(error);
  if (state === "live") {
    store.stopAsking();
    store.askAll(shown).catch(() => {});
  } else if (live) {
    store.keepAsking(() => shown, () => log.ask());
  }
}

// ---- the form

function drawApps() {
  const options = [...apps.values()].map((app) => element("option", { value: app.name }, app.title ?? app.name));
  byId("app").replaceChildren(...options);
  drawModels();
}

const chosenApp = () => apps.get(byId("app").value);
const chosenModel = () => chosenApp()?.models?.find((m) => m.name === byId("model").value);

function drawModels() {
  const app = chosenApp();
  const models = app?.models ?? [];
  byId("model").replaceChildren(...models.map((m) => element("option", { value: m.name }, m.title)));
  byId("model-row").hidden = models.length < 2;
  byId("start").disabled = models.length === 0;
  byId("app-error").hidden = !app?.error;
  setText(byId("app-error"), app?.error ? sentenceOf(`this app cannot be used: ${app.error}`) : "");
  drawFields();
}

function drawFields() {
  form = fieldsForm(byId("fields"), chosenModel()?.fields ?? []);
}

byId("app").addEventListener("change", drawModels);
byId("model").addEventListener("change", drawFields);
byId("defaults").addEventListener("click", () => { form.set({}); where.set({}); });

byId("new").addEventListener("submit", (event) => {
  event.preventDefault();
  const [values, there] = [form.values(), where.values()];
  const [app, model] = [chosenApp(), chosenModel()];
  if (!values || !there || !model) return;
  withButton(byId("start"), async () => {
    try {
      const run = await store.start(app.name, randomWord(8), model.name, { ...values, ...there });
      select(run, true);
    } catch (error) {
      // a refusal that names a field is shown there
      const named = error instanceof ApiError && new RegExp(`models\\.${model.name}\\.(\\w+)`).exec(error.message);
      const said = sentenceOf(error.message.replace(/^\S+ \((.*)\) must/, "$1 must"));
      if (!named || !(form.mark(named[1], said) || where.mark(named[1], said))) throw error;
    }
  });
});

// ---- the list of runs

function titleOf(run) {
  const [app, model] = [store.appOf(run), store.modelOf(run)];
  return model?.title ?? app?.title ?? run.simulationType;
}

function drawRuns() {
  const runs = store.all();
  byId("no-runs").hidden = runs.length > 0;
  const list = byId("runs");
  // kept, not made anew: whoever stands on one with the keyboard stays there
  const there = new Map([...list.children].map((item) => [item.dataset.run, item]));
  const items = runs.map((run) => drawnItem(there.get(run.key) ?? newItem(run), run));
  if (items.some((item, n) => list.children[n] !== item) || items.length !== list.children.length) list.replaceChildren(...items);
}

function newItem(run) {
  const button = element("button", { type: "button" },
    element("span", { className: "name" }), element("span", { className: "chip" }), element("small"), element("small"));
  button.addEventListener("click", () => select(run, true));
  const item = element("li", {}, button);
  item.dataset.run = run.key;
  return item;
}

function drawnItem(item, run) {
  const [name, chip, when, far] = item.firstChild.children;
  setText(name, titleOf(run));
  setText(chip, stateName(run.status));
  chip.dataset.tone = tone(run.status);
  setText(when, `${moment(run.at)} · ${run.simulationId}`);
  setText(far, isActive(run.status) ? percentText(run.status) : duration(elapsed(run)));
  item.firstChild.setAttribute("aria-current", String(run === shown));
  return item;
}

// ---- the run that is shown

/** go: where it stands below everything else, as on a phone, the page moves there. */
function select(run, go = false) {
  shown = run;
  filesOf = "";
  drawRuns();
  drawShown();
  store.ask(run).catch(showError);
  const place = byId("run");
  if (go && place.getBoundingClientRect().top > window.innerHeight * 0.6) place.scrollIntoView({ block: "start" });
}

function changed(run) {
  drawRuns();
  if (run === shown) drawShown();
}

const percentText = (status) => (Number.isFinite(status.percentComplete) ? `${Math.floor(status.percentComplete)} %` : "");

function elapsed(run) {
  const status = run.status;
  if (status.computeJobStart && status.computeJobEnd) return status.computeJobEnd - status.computeJobStart;
  if (!Number.isFinite(status.elapsedTime)) return null;
  return status.elapsedTime + (status.state === "running" ? (performance.now() - run.heardAt) / 1000 : 0);
}

function drawShown() {
  const run = shown;
  const status = run.status;
  byId("empty").hidden = true;
  byId("shown").hidden = false;
  byId("shown").dataset.state = status.state;
  byId("shown").dataset.run = run.key;
  setText(byId("run-title"), titleOf(run));
  setText(byId("run-id"), run.key);
  setText(byId("chip"), stateName(status));
  byId("chip").dataset.tone = tone(status);
  setText(byId("sentence"), sentence(status));
  byId("alert").hidden = !status.alert;
  setText(byId("alert"), status.alert ? sentenceOf(status.alert) : "");
  setText(byId("batch-state"), batchOf(status));
  byId("batch-state").hidden = !status.batch;
  why.show({
    path: address(`run-why/${run.simulationType}/${run.simulationId}/${run.model}`, { computeJobSerial: run.serial }), state: status.state,
    stamp: `${run.key} ${run.serial} ${status.state} ${status.queueState ?? ""}`,
  });
  byId("sign-in-row").hidden = !(isActive(status) && status.signIn);
  byId("cancel").hidden = !isActive(status);
  byId("reuse").hidden = !store.modelOf(run) || !valuesOf(run);
  drawProgress(run);
  drawPicture(run);
  log.show({ key: run.key, simulationType: run.simulationType, simulationId: run.simulationId, model: run.model, serial: run.serial });
  drawFiles(run);
}

function drawProgress(run) {
  const { status } = run;
  const done = status.percentComplete;
  const bar = byId("progress");
  const knows = store.modelOf(run)?.kind === "parallel" && Number.isFinite(done);
  if (knows) bar.value = done;
  else if (status.state === "completed") bar.value = 100;
  else if (status.state === "running") bar.removeAttribute("value");
  else bar.value = 0;
  setText(byId("percent"), knows ? percentText(status) : "");
  setText(byId("elapsed"), duration(elapsed(run)));
}

function drawPicture(run) {
  const model = store.modelOf(run);
  const parallel = model?.kind === "parallel";
  // frames are named by the hash, too: until it is known there are none to be asked for
  if (parallel && !run.hash) return frames.clear();
  const said = { key: run.key, simulationType: run.simulationType, simulationId: run.simulationId, serial: run.serial, hash: run.hash };
  frames.show(said, parallel ? model.reports : []);
  if (parallel) return frames.grown(run.status.frameCount ?? 0);
  if (run.status.result) return frames.result(run.status.result);
  if (run.status.state === "completed" && run.heardAt) store.ask(run).catch(showError);
}

async function drawFiles(run) {
  const { status } = run;
  const stamp = `${run.key} ${run.serial} ${status.state} ${(status.frameCount ?? 0) > 0}`;
  if (stamp === filesOf) return;
  filesOf = stamp;
  let names = [];
  let none = isActive(status) ? "There are none yet." : "It never started, so there are none.";
  const path = `${run.simulationType}/${run.simulationId}/${run.model}`;
  if (status.computeJobStart) {
    try {
      names = (await get(address(`run-files/${path}`, { computeJobSerial: run.serial }))).files;
      none = "This run has left none.";
    } catch (error) {
      none = error instanceof ApiError ? sentenceOf(error.message) : "They cannot be listed.";
    }
  }
  if (stamp !== filesOf) return;
  byId("files").replaceChildren(...names.map((name) => {
    const query = { suffix: name, computeJobSerial: run.serial };
    return element("li", {}, element("a", { href: address(`download-run-file/${path}/-1`, query).href, download: "" }, name));
  }));
  setText(byId("no-files"), names.length ? "" : none);
}

byId("cancel").addEventListener("click", (event) => {
  const run = shown;
  withButton(event.currentTarget, () => store.cancel(run));
});

byId("reuse").addEventListener("click", () => {
  byId("app").value = shown.simulationType;
  drawModels();
  byId("model").value = shown.model;
  drawFields();
  form.set(valuesOf(shown));
  where.set(valuesOf(shown));
  byId("start").focus();
});

byId("cluster-open").addEventListener("click", () => signIn.open({ ...shown.status.signIn, reason: "no-creds" }));

/** What waited for it goes on by itself; here it is only asked for. */
function signedIn() {
  clearNotices();
  store.askAll(shown).catch(showError);
  // what the cluster has is told to those whom it has let in
  get("clusters").then((found) => where.offer(found.clusters), showError);
}

// time passes also while nothing is heard
setInterval(() => { if (shown?.status.state === "running") setText(byId("elapsed"), duration(elapsed(shown))); }, 200);

async function begin() {
  try {
    return await enter((await get("who")).name);
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== "notFound") return showError(error);
  }
  // only a site for development knows names; any other has its own page for signing in
  try {
    await enter(null);
  } catch (error) {
    if (error instanceof ApiError && error.isNobody) byId("bench").hidden = true;
    showError(error);
  }
}

begin();
