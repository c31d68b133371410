// The user's runs as far as this page knows them, by computeJid. What is heard of a run may come late or twice; it never makes a run
// younger, nor undoes its end. Asks the front end where the stream of news does not tell. Draws nothing.

import { ApiError, post } from "./api.js";
import { isActive } from "./words.js";

const LISTED = 30;
/** How many runs one request for older ones brings, and how many such requests are sent before the reader is asked again. */
const OLDER = 200;
const MOST_PAGES = 10;
/** Of those that are not over, so many are asked for at once. */
const MOST_ASKED = 60;
/** Simulation type of plain commands. */
export const COMMAND = "command";
const REMEMBERED = "jobscribe.values";
const VALUES_KEPT = 60;
/** How often to ask where nobody says it, seconds. */
const ASK_SECS = 2;

/** What only the system knows of a run, whatever its own report says. */
const OURS = new Set([
  "state", "reason", "error", "known", "since", "over", "superseded", "queueState", "jobStatusMessage", "elapsedTime", "canceledAfterSecs",
  "computeJid", "computeJobHash", "computeJobSerial", "computeJobQueued", "computeJobStart", "computeJobEnd", "computeJobPosition", "attempt", "exit", "runDir",
  "position", "nextRequest", "nextRequestSeconds", "result", "resultError", "batch", "signIn", "srException", "why",
]);
const theirs = (report) => Object.fromEntries(Object.entries(report ?? {}).filter(([name]) => !OURS.has(name)));

/** A status for the page, with what the run reports beside it. */
const flat = (status) => ({ ...theirs(status.parallelStatus), ...status });

/** onChange(run), onListed(): there are more, onError(error, run), onWarning(sentence): a run was accepted with a warning, onSignIn(params): a run that was just started goes on only after its user has signed in to a cluster. */
export function runsStore({ onChange, onError, onListed = () => {}, onSignIn = () => {}, onWarning = () => {} }) {
  const runs = new Map();
  let apps = new Map();
  let timer = 0;
  /** Rounds of asking that were begun before this one do not go on. */
  let asking = 0;
  /** Where the list goes on (undefined: not asked yet, null: at its end), and the newest change that was listed. */
  let older;
  let newest = 0;
  /** Lists that were asked for before are another user's. */
  let visit = 0;

  const appOf = (run) => apps.get(run.simulationType);
  const modelOf = (run) => appOf(run)?.models?.find((m) => m.name === run.model);

  function titleOf(run) {
    const title = modelOf(run)?.title ?? appOf(run)?.title ?? run.simulationType;
    if (run.simulationType !== COMMAND) return title;
    return run.model === COMMAND ? "Command" : `Command ${run.model}`;
  }

  /** Newest first. */
  const all = () => [...runs.values()].sort((a, b) => b.at - a.at || b.serial - a.serial);

  /** The newest runs, whoever submitted them. */
  async function load(itsApps) {
    apps = itsApps;
    const mine = visit;
    const { jobs, next } = await post("own-jobs", { active: null, limit: LISTED });
    if (mine !== visit) return;
    // the list is ordered by the position of each run's last change: if no run of this page is known from an earlier page, some lie between
    if (older === undefined || (next && next > newest)) older = next ?? null;
    newest = Math.max(newest, ...jobs.map((row) => row.computeJobPosition ?? 0));
    if (jobs.filter(listed).length) onListed();
  }

  /** Older runs, until there are `wanted` more of them that are `wished`. */
  async function more(wanted, wished) {
    const mine = visit;
    for (let [page, found] = [0, 0]; older && page < MOST_PAGES && found < wanted; page += 1) {
      const { jobs, next } = await post("own-jobs", { active: null, limit: OLDER, before: older });
      if (mine !== visit) return;
      older = next ?? null;
      found += jobs.filter((row) => listed(row) && wished(row)).length;
    }
  }

  /** Is it new? */
  function listed(row) {
    if (runs.has(row.computeJid)) return false;
    const run = added(row.computeJid, row.simulationType, row.simulationId, row.computeModel);
    run.at = row.computeJobQueued ?? 0;
    run.serial = row.computeJobSerial ?? 0;
    run.status = { ...row };
    return true;
  }

  function added(key, simulationType, simulationId, model) {
    const unheard = { serial: 0, hash: null, at: Date.now() / 1000, status: { state: "pending" }, heardAt: 0 };
    const run = { key, simulationType, simulationId, model, ...unheard };
    runs.set(key, run);
    return run;
  }

  /** A status out of the stream of news, also of a run that was submitted elsewhere. */
  function news(said) {
    const [, simulationId, model] = said.computeJid.split("-");
    if (!runs.has(said.computeJid) && said.simulationType) added(said.computeJid, said.simulationType, simulationId, model);
    hear(said);
  }

  /** What the page was told of a run, in a reply or an event; asked: in the answer to a question about it, which leaves nothing out. Returns the run, or null where it is none of ours. */
  function hear(said, asked = false) {
    const run = runs.get(said.computeJid);
    if (!run) return null;
    const serial = said.computeJobSerial ?? 0;
    if (serial && serial < run.serial) return run;
    const sameRun = serial === run.serial;
    if (sameRun && isActive(said) && !isActive(run.status)) return run;
    // an answer that was under way while the stream told newer things
    const position = said.computeJobPosition ?? said.position;
    if (sameRun && position < run.position) return run;
    run.position = position ?? (sameRun ? run.position : 0);
    const kept = sameRun ? reported(run.status) : {};
    if (sameRun && !asked && signsOut(said)) kept.signIn = run.status.signIn;
    run.serial = serial || run.serial;
    run.hash = said.computeJobHash ?? (sameRun ? run.hash : null);
    run.at = said.computeJobQueued ?? run.at;
    run.status = { ...kept, ...flat(said) };
    run.heardAt = performance.now();
    onChange(run);
    askWhere(run);
    return run;
  }

  /** The stream of news says that somebody has to sign in, but not where. */
  function askWhere(run) {
    if (!signsOut(run.status)) {
      run.askedWhere = null;
    } else if (!run.status.signIn && run.askedWhere !== run.serial) {
      run.askedWhere = run.serial;
      ask(run).catch((error) => onError(error, run));
    }
  }

  /** It may be that its user has to sign in somewhere. */
  const signsOut = (status) => isActive(status) && (status.queueState === "sign_in" || status.known === false);

  /** A status without a report does not take back the last one. */
  const reported = ({ frameCount, percentComplete, result }) => ({ frameCount, percentComplete, result });

  function progressed({ computeJid, computeJobSerial, parallelStatus }) {
    const run = runs.get(computeJid);
    if (!run || computeJobSerial !== run.serial || !isActive(run.status)) return;
    run.status = { ...run.status, ...theirs(parallelStatus) };
    // its agent is heard of again
    if (run.status.known === false) ask(run).catch((error) => onError(error, run));
    onChange(run);
  }

  // ---- asking

  const named = (run) => ({ simulationType: run.simulationType, simulationId: run.simulationId, report: run.model });

  async function start(simulationType, simulationId, model, values) {
    const answer = await post("run-simulation", {
      simulationType, simulationId, report: model, models: { [model]: values }, forceRun: false,
    });
    const first = answer.state === "srException" ? answer.srException : null;
    const said = first ? { ...answer.run, signIn: first.params } : answer;
    if (!runs.has(said.computeJid)) added(said.computeJid, simulationType, simulationId, model);
    rememberValues(said.computeJid, values);
    const run = hear(said);
    if (first) onSignIn(first.params);
    if (said.quotaWarning) onWarning(said.quotaWarning);
    return run;
  }

  async function ask(run) {
    const said = await post("run-status", { ...named(run), computeJobSerial: run.serial });
    if (said.state === "missing" && run.serial) return void (await askForCurrent(run));
    heardWithResult(run, said);
  }

  /** Another run has taken its place: that one is what there is to show. */
  async function askForCurrent(run) {
    const said = await post("run-status", named(run));
    if (said.state !== "missing") return heardWithResult(run, said);
    run.status = { ...said };
    onChange(run);
  }

  function heardWithResult(run, said) {
    const isResult = modelOf(run)?.kind === "sequential" && said.state === "completed";
    hear(isResult ? { ...said, result: said } : said, true);
  }

  async function cancel(run) {
    const body = { ...named(run), computeJobSerial: run.serial };
    if (run.hash) body.computeJobHash = run.hash;
    hear(await post("run-cancel", body));
  }

  /** Asks for everything that is not over, and for `shown`. */
  async function askAll(shown) {
    const due = all().filter((run) => run !== shown && (isActive(run.status) || run.status.over === false));
    await Promise.all([...(shown ? [shown] : []), ...due.slice(0, MOST_ASKED)].map((run) => ask(run)));
  }

  /** While the stream of news is not open. also(): what else is to be asked for. */
  function keepAsking(shown, also) {
    stopAsking();
    // who answers next may have begun anew with an older log
    for (const run of all()) run.position = 0;
    newest = 0;
    const mine = asking;
    const round = async () => {
      let pause = ASK_SECS;
      try {
        await load(apps);
        await askAll(shown());
        await also();
        const active = all().filter((r) => isActive(r.status));
        pause = Math.max(1, Math.min(...active.map((r) => r.status.nextRequestSeconds ?? ASK_SECS), active.length ? 60 : 10));
      } catch (error) {
        // that nobody answers is shown already
        if (!(error instanceof ApiError) || error.isNobody) onError(error);
        pause = 5;
      }
      if (mine === asking) timer = setTimeout(round, pause * 1000);
    };
    timer = setTimeout(round, 0);
  }

  function stopAsking() {
    clearTimeout(timer);
    asking += 1;
  }

  function clear() {
    stopAsking();
    runs.clear();
    [older, newest] = [undefined, 0];
    visit += 1;
  }

  return {
    load, more, hasMore: () => Boolean(older), all, news, hear, progressed, start, ask, askAll, cancel, keepAsking, stopAsking, clear, appOf, modelOf, titleOf, get: (key) => runs.get(key),
  };
}

/** Seconds that the run has taken so far; null where that is not known. */
export function elapsed(run) {
  const status = run.status;
  if (status.computeJobStart && status.computeJobEnd) return status.computeJobEnd - status.computeJobStart;
  if (!Number.isFinite(status.elapsedTime)) return null;
  return status.elapsedTime + (status.state === "running" ? (performance.now() - run.heardAt) / 1000 : 0);
}

// ---- the values a run was started with: the system keeps them, but tells them to nobody; this browser remembers its own

function remembered() {
  try {
    return JSON.parse(localStorage.getItem(REMEMBERED)) ?? {};
  } catch {
    return {};
  }
}

function rememberValues(key, values) {
  const kept = Object.entries({ ...remembered(), [key]: values }).slice(-VALUES_KEPT);
  localStorage.setItem(REMEMBERED, JSON.stringify(Object.fromEntries(kept)));
}

export const valuesOf = (run) => remembered()[run.key] ?? null;
