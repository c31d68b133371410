// The picture of the run that is shown: which report, which frame, the slider, and playing them. Frames never change, so what was
// fetched is kept for a while. One request at a time; whoever drags the slider gets the frame on which it rests.

import { ApiError, address, get } from "./api.js";
import { MAPS } from "./colours.js";
import { byId, element, setText } from "./dom.js";
import { described, draw, kindOf, valueRange } from "./pictures.js";
import { plain } from "./terminal.js";

const KEPT = 80;
const PLAY_MS = 90;
/** A frame that was announced may need a moment to be readable. */
const AGAIN_MS = 700;
const REMEMBERED = "jobscribe.colours";

export function framesView() {
  const canvas = byId("canvas");
  const slider = byId("slider");
  const follow = byId("follow");
  const play = byId("play");
  const colours = byId("colours");
  const fit = byId("fit");
  let run = null;
  let reports = [];
  let report = null;
  let count = 0;
  let wanted = 0;
  let busy = false;
  let kept = new Map();
  let data = null;
  /** Range of the colours over all frames seen, by report: a colour means the same in each of them. */
  let ranges = new Map();
  let under = () => "";
  let again = 0;
  let playing = 0;

  colours.append(...MAPS.map((name) => element("option", { value: name }, name)));
  colours.value = MAPS.includes(localStorage.getItem(REMEMBERED)) ? localStorage.getItem(REMEMBERED) : "viridis";

  // ---- which run, which report

  /** said: {key, simulationType, simulationId, hash, serial} of a run; shown from its newest frame on. */
  function show(said, itsReports) {
    const same = run !== null && run.key === said.key && run.serial === said.serial;
    run = said;
    if (same) return;
    stopPlaying();
    clearTimeout(again);
    reports = itsReports;
    report = reports[0] ?? null;
    [count, wanted] = [0, 0];
    wipe();
    kept = new Map();
    ranges = new Map();
    follow.checked = true;
    drawTabs();
    refresh();
  }

  /** How many frames there are now. */
  function grown(frames) {
    if (frames === count) return;
    count = frames;
    if (follow.checked) wanted = Math.max(0, count - 1);
    refresh();
    fetchWanted();
  }

  /** A picture that is no frame: the result of a sequential model. */
  function result(picture) {
    data = kindOf(picture) ? picture : null;
    note(data ? "" : "This run has no picture; look at its files.");
    refresh();
    redraw();
  }

  /** What belongs to another run or report is not shown while its successor is on its way. */
  function wipe() {
    data = null;
    under = () => "";
    canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
    canvas.removeAttribute("aria-label");
    delete canvas.dataset.frame;
    delete canvas.dataset.report;
    note("");
  }

  function drawTabs() {
    const tabs = reports.map((r, n) => {
      const tab = element("button", { type: "button", id: `tab-${r.name}` }, r.title);
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", "figure");
      tab.addEventListener("click", () => choose(r));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) choose(reports[(n + step + reports.length) % reports.length], true);
      });
      return tab;
    });
    byId("reports").replaceChildren(...tabs);
    markTab(false);
  }

  function markTab(focus) {
    for (const tab of byId("reports").children) {
      const mine = tab.id === `tab-${report?.name}`;
      tab.setAttribute("aria-selected", String(mine));
      tab.tabIndex = mine ? 0 : -1;
      if (mine && focus) tab.focus();
    }
  }

  function choose(chosen, focus = false) {
    report = chosen;
    wipe();
    markTab(focus);
    refresh();
    fetchWanted();
  }

  // ---- fetching

  const keyOf = (index) => `${report.name}*${index}`;

  const frameId = (index) =>
    `${index}*${report.name}*${run.simulationId}*${run.simulationType}*${run.hash}*${run.serial}`;

  async function fetchWanted() {
    if (busy || !run || !report || count === 0) return;
    busy = true;
    try {
      let shown;
      do {
        shown = { run, report, index: wanted };
        await showFrame(shown);
      } while (run !== null && (shown.run.serial !== run.serial || shown.report !== report || shown.index !== wanted) && count > 0);
    } finally {
      busy = false;
    }
  }

  async function showFrame({ run: of, report: its, index }) {
    const key = keyOf(index);
    let picture = kept.get(key);
    const own = kept;
    try {
      picture ??= await get(address(`simulation-frame/${encodeURIComponent(frameId(index))}`));
    } catch (error) {
      return failed(error, index);
    }
    own.delete(key);
    own.set(key, picture);
    if (own.size > KEPT) own.delete(own.keys().next().value);
    if (of.key !== run?.key || of.serial !== run?.serial || its !== report) return;
    data = picture;
    canvas.dataset.frame = String(index);
    canvas.dataset.report = its.name;
    note("");
    redraw();
  }

  function failed(error, index) {
    if (!(error instanceof ApiError)) throw error;
    note(error.code === "unreachable" ? "The site does not answer; trying again." : `Frame ${index + 1}: ${error.message}.`);
    clearTimeout(again);
    const passing = error.code === "unreachable" || error.http >= 500 || error.code === "notReady" || error.http === 429;
    if (passing || index === count - 1) again = setTimeout(fetchWanted, AGAIN_MS * (passing ? 2 : 1));
  }

  // ---- drawing

  function redraw() {
    if (!data || byId("picture-card").hidden) return;
    under = draw(canvas, data, { map: colours.value, range: rangeOf(data) });
    canvas.setAttribute("aria-label", described(data));
    byId("colouring").hidden = kindOf(data) === "curves";
  }

  /** Of what the colours mean: as the app says it, or over all frames that were seen; in this frame alone where that is wished. */
  function rangeOf(picture) {
    if (fit.checked) return valueRange(picture);
    if (Array.isArray(picture.zRange)) return picture.zRange;
    const range = valueRange(picture);
    if (!range || !report) return range;
    const before = ranges.get(report.name) ?? range;
    const both = [Math.min(before[0], range[0]), Math.max(before[1], range[1])];
    ranges.set(report.name, both);
    return both;
  }

  function note(text) {
    setText(byId("picture-note"), plain(text));
  }

  function refresh() {
    const framed = reports.length > 0 && count > 0;
    byId("figure").hidden = !data && !framed;
    byId("reports").hidden = reports.length < 2;
    byId("frames").hidden = !framed;
    byId("picture-card").hidden = !data && !framed;
    slider.max = String(Math.max(0, count - 1));
    slider.value = String(wanted);
    slider.setAttribute("aria-valuetext", `frame ${wanted + 1} of ${count}`);
    setText(byId("frame-number"), framed ? `frame ${wanted + 1} of ${count}` : "");
  }

  // ---- what people do

  function go(index) {
    wanted = Math.max(0, Math.min(count - 1, index));
    refresh();
    fetchWanted();
  }

  function stopPlaying() {
    clearInterval(playing);
    playing = 0;
    play.textContent = "Play";
    play.setAttribute("aria-pressed", "false");
  }

  function startPlaying() {
    follow.checked = false;
    if (wanted >= count - 1) go(0);
    play.textContent = "Pause";
    play.setAttribute("aria-pressed", "true");
    playing = setInterval(() => {
      if (busy) return;
      if (wanted >= count - 1) stopPlaying();
      else go(wanted + 1);
    }, PLAY_MS);
  }

  slider.addEventListener("input", () => {
    stopPlaying();
    // the last place of the slider is the newest frame, whichever that will be
    follow.checked = Number(slider.value) === count - 1;
    go(Number(slider.value));
  });
  follow.addEventListener("change", () => {
    stopPlaying();
    if (follow.checked) go(count - 1);
  });
  play.addEventListener("click", () => (playing ? stopPlaying() : startPlaying()));
  colours.addEventListener("change", () => {
    localStorage.setItem(REMEMBERED, colours.value);
    redraw();
  });
  fit.addEventListener("change", redraw);
  canvas.addEventListener("pointermove", (event) => setText(byId("readout"), under(event.offsetX, event.offsetY)));
  canvas.addEventListener("pointerleave", () => setText(byId("readout"), ""));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10 }[event.key];
    if (!step || count === 0) return;
    event.preventDefault();
    stopPlaying();
    follow.checked = false;
    go(wanted + step);
  });
  new ResizeObserver(() => redraw()).observe(byId("figure"));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  function clear() {
    run = null;
    stopPlaying();
    clearTimeout(again);
    [count, wanted, reports, report] = [0, 0, [], null];
    wipe();
    refresh();
  }

  return { show, grown, result, clear };
}
