// The page: who is signed in, the form, the list of runs, and the run that is shown. Puts the other modules together; what is heard
// goes to the store of runs, and what is shown follows from it.

import { ApiError, address, get, post, randomWord } from "./api.js";
import { byId, element, setText } from "./dom.js";
import { filesView } from "./files.js";
import { fieldsForm } from "./form.js";
import { framesView } from "./frames.js";
import { runsList } from "./list.js";
import { openLive } from "./live.js";
import { logView } from "./log.js";
import { clusterSignIn } from "./cluster_sign_in.js";
import { noticeBoard } from "./notices.js";
import { elapsed, runsStore, valuesOf } from "./runs.js";
import { whereForm } from "./where.js";
import { whyView } from "./why.js";
import { batchOf, duration, isActive, percentText, sentence, sentenceOf, stateName, tone } from "./words.js";

const LINKS = { live: "live", asking: "asking every few seconds", lost: "no connection; trying again" };
/** Without connection for so long, the page says what may be done about it, milliseconds. */
const LOST_MS = 8000;
/** Between two tries to load the page's data, milliseconds. */
const [FIRST_PAUSE_MS, LONGEST_PAUSE_MS] = [1000, 8000];

let apps = new Map();
let shown = null;
let form = null;
let live = null;
/** Visits that were begun before this one do not go on. */
let visit = 0;
let lost = 0;
/** Address of the page on which people sign in, where it is not the form of this page. */
let signInPage = null;

const frames = framesView();
const why = whyView();
const files = filesView();
const log = logView({ onWish: () => live?.reopen(), onError: (error) => showError("log", error) });
const notices = noticeBoard(() => post("job-supervisor-ping"));
const signIn = clusterSignIn({ onSignedIn: signedIn });
const store = runsStore({ onChange: changed, onListed: drawRuns, onError: askFailed, onSignIn: (params) => signIn.open(params), onWarning: warnOfQuota });
const list = runsList({
  store, onSelect: (run) => select(run, true), onMore: () => notices.clear("list"), onError: (error) => showError("list", error),
});
const where = whereForm();

// ---- notices

/** Anything that went wrong, as a person can read it. What is not a refusal is a mistake of this page: the console has it. */
function showError(owner, error, about = "", advice = error.advice) {
  if (error instanceof ApiError && error.isNobody) return welcome();
  if (!(error instanceof ApiError)) {
    console.error(error);
    return notices.show("page", { message: "something went wrong in this page", advice: "load it again" });
  }
  notices.show(owner, { message: about + error.message, advice, unreachable: error.isUnreachable });
}

/** Report a failed status request only for the run that is shown. */
function askFailed(error, run = shown) {
  if (run === shown || !(error instanceof ApiError) || error.isNobody) showError("run", error);
}

/** The run was accepted, and its user has little space left. */
function warnOfQuota(message) {
  const [said, ...rest] = message.split("; ");
  notices.show("quota", { message: said, advice: rest.join("; ") });
}

/** Does it, with the button out of reach meanwhile; a refusal becomes a notice of this owner. */
async function withButton(button, owner, action, about = "") {
  button.disabled = true;
  notices.clear(owner);
  try {
    await action();
  } catch (error) {
    // what a button does is not tried again by itself
    showError(owner, error, about, error.isUnreachable ? "what runs, runs on; try this again when the site answers" : error.advice);
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
  byId("sign-in").hidden = signInPage !== null;
  byId("sign-in-page").hidden = signInPage === null;
  if (signInPage === null) return byId("name").focus();
  byId("sign-in-link").href = address(signInPage);
}

function leave() {
  visit += 1;
  signIn.close();
  live?.close();
  live = null;
  store.clear();
  shown = null;
  frames.clear();
  log.show(null);
  byId("shown").hidden = true;
  byId("empty").hidden = false;
  list.clear();
  clearTimeout(lost);
  lost = 0;
  notices.clearAll();
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
  const mine = (visit += 1);
  await persistently(loadAll, () => mine === visit);
  if (mine !== visit) return;
  drawRuns();
  live = openLive({ query: () => log.wish(), onEvent: heard, onLink: linked });
  const newest = store.all()[0];
  if (newest) select(newest);
}

async function loadAll() {
  const found = (await get("apps")).apps;
  const { clusters } = await get("clusters");
  apps = new Map(found.map((app) => [app.name, app]));
  await store.load(apps);
  drawApps();
  where.offer(clusters);
}

/** Does it again while the site does not answer: nobody should have to load the page again. */
async function persistently(action, goesOn) {
  for (let pause = FIRST_PAUSE_MS; ; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
    try {
      const done = await action();
      notices.clear("page-data");
      return done;
    } catch (error) {
      if (!(error instanceof ApiError) || !error.isUnreachable) throw error;
      if (!goesOn()) return undefined;
      showError("page-data", error);
    }
    await new Promise((resolve) => { setTimeout(resolve, pause); });
    if (!goesOn()) return undefined;
  }
}

byId("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  withButton(event.submitter ?? byId("name"), "sign-in", async () => {
    const { name } = await post("sign-in", { name: byId("name").value.trim() });
    await enter(name);
  });
});

byId("sign-out").addEventListener("click", (event) =>
  withButton(event.currentTarget, "sign-out", async () => {
    await post("sign-out");
    welcome();
  }));

// ---- the stream of news

function heard(name, data) {
  if (name === "status") {
    store.news(data);
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
  if (state !== "lost") {
    clearTimeout(lost);
    lost = 0;
    notices.clear("connection");
  } else if (!lost) {
    lost = setTimeout(sayLost, LOST_MS);
  }
  if (state === "live") {
    notices.back();
    store.stopAsking();
    store.load(apps).then(() => notices.clear("list"), (error) => showError("list", error));
    store.askAll(shown).catch(() => {});
  } else if (live) {
    store.keepAsking(() => shown, () => log.ask());
  }
}

/** After a restart on another port, the page cannot find the new address by itself. */
function sayLost() {
  const ours = !byId("who").hidden;
  const advice = ours
    ? 'what runs, runs on, and this page keeps trying; if "jobscribe up" was started again and printed another address, open that one'
    : "what runs, runs on, and this page keeps trying; if this takes long, ask the operator of this site";
  notices.show("connection", { message: `no connection to ${window.location.origin}`, advice });
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

byId("new").addEventListener("input", () => notices.clear("start"));

byId("new").addEventListener("submit", (event) => {
  event.preventDefault();
  const [values, there] = [form.values(), where.values()];
  const [app, model] = [chosenApp(), chosenModel()];
  if (!values || !there || !model) return;
  withButton(byId("start"), "start", async () => {
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

function drawRuns() {
  list.draw(shown);
}

// ---- the run that is shown

/** go: where it stands below everything else, as on a phone, the page moves there. */
function select(run, go = false) {
  if (run !== shown) notices.clear("run", "cancel", "log");
  shown = run;
  drawRuns();
  drawShown();
  store.ask(run).catch((error) => askFailed(error, run));
  const place = byId("run");
  if (go && place.getBoundingClientRect().top > window.innerHeight * 0.6) place.scrollIntoView({ block: "start" });
}

function changed(run) {
  drawRuns();
  if (run !== shown) return;
  notices.clear("run");
  if (!isActive(run.status) || run.status.queueState === "stopping") notices.clear("cancel");
  drawShown();
}

function drawShown() {
  const run = shown;
  const status = run.status;
  byId("empty").hidden = true;
  byId("shown").hidden = false;
  byId("shown").dataset.state = status.state;
  byId("shown").dataset.run = run.key;
  setText(byId("run-title"), store.titleOf(run));
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
  files.show(run, Boolean(store.modelOf(run)));
}

function drawProgress(run) {
  const { status } = run;
  const bar = byId("progress");
  const knows = Number.isFinite(status.percentComplete);
  if (status.state === "completed") bar.value = 100;
  else if (knows) bar.value = status.percentComplete;
  else if (status.state === "running") bar.removeAttribute("value");
  else bar.value = 0;
  setText(byId("percent"), knows ? percentText({ percentComplete: bar.value }) : "");
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
  if (model && run.status.state === "completed" && run.heardAt) store.ask(run).catch((error) => askFailed(error, run));
}

byId("cancel").addEventListener("click", (event) => {
  const run = shown;
  withButton(event.currentTarget, "cancel", () => store.cancel(run), "the cancel was not confirmed: ");
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
  notices.clear("start", "run", "clusters");
  store.askAll(shown).catch(askFailed);
  // what the cluster has is told to those whom it has let in
  get("clusters").then((found) => where.offer(found.clusters), (error) => showError("clusters", error));
}

// time passes also while nothing is heard
setInterval(() => { if (shown?.status.state === "running") setText(byId("elapsed"), duration(elapsed(shown))); }, 200);

async function begin() {
  try {
    const found = await persistently(() => get("who"), () => visit === 0);
    signInPage = found?.signIn ?? null;
    return found && await enter(found.name);
  } catch (error) {
    signInPage ??= error.signIn ?? null;
    if (!(error instanceof ApiError) || error.code !== "notFound") return showError("page-data", error);
  }
  // only a site for development knows names; any other has its own page for signing in
  try {
    await enter(null);
  } catch (error) {
    if (error instanceof ApiError && error.isNobody) byId("bench").hidden = true;
    showError("page-data", error);
  }
}

begin();
