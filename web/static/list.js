// The list of the user's runs: newest first, of all kinds or of one. It begins with the newest ones; a button shows older ones.

import { byId, element, setText } from "./dom.js";
import { COMMAND, elapsed } from "./runs.js";
import { duration, isActive, moment, percentText, stateName, tone } from "./words.js";

const PAGE = 30;
/** Between two drawings, milliseconds: of a thousand runs each may change often. */
const PAUSE_MS = 100;

/** onSelect(run), onError(error), onMore(): the button was pressed. Returns {draw(shown), clear()}. */
export function runsList({ store, onSelect, onError, onMore }) {
  const [list, kind, more] = ["runs", "kind", "more"].map(byId);
  let limit = PAGE;
  let shown = null;
  let [resting, due] = [false, false];

  const wished = (run) => !kind.value || (run.simulationType === COMMAND) === (kind.value === COMMAND);

  function draw(itsShown) {
    shown = itsShown;
    due = resting;
    if (resting) return;
    resting = true;
    drawNow();
    setTimeout(() => {
      resting = false;
      if (due) draw(shown);
    }, PAUSE_MS);
  }

  function drawNow() {
    const runs = store.all().filter(wished);
    setText(byId("no-runs"), kind.value && store.all().length ? "None of this kind." : "None yet.");
    byId("no-runs").hidden = runs.length > 0;
    more.hidden = runs.length <= limit && !store.hasMore();
    // kept, not made anew: whoever stands on one with the keyboard stays there
    const there = new Map([...list.children].map((item) => [item.dataset.run, item]));
    const items = runs.slice(0, limit).map((run) => drawnItem(there.get(run.key) ?? newItem(run), run));
    if (items.some((item, n) => list.children[n] !== item) || items.length !== list.children.length) list.replaceChildren(...items);
  }

  function newItem(run) {
    const button = element("button", { type: "button" },
      element("span", { className: "name" }), element("span", { className: "chip" }), element("small"), element("small"));
    button.addEventListener("click", () => onSelect(run));
    const item = element("li", {}, button);
    item.dataset.run = run.key;
    return item;
  }

  function drawnItem(item, run) {
    const [name, chip, when, far] = item.firstChild.children;
    setText(name, store.titleOf(run));
    setText(chip, stateName(run.status));
    chip.dataset.tone = tone(run.status);
    setText(when, `${moment(run.at)} · ${run.simulationId}`);
    setText(far, isActive(run.status) ? percentText(run.status) : duration(elapsed(run)));
    item.firstChild.setAttribute("aria-current", String(run === shown));
    return item;
  }

  async function showMore() {
    more.disabled = true;
    try {
      onMore();
      const missing = limit + PAGE - store.all().filter(wished).length;
      if (missing > 0) await store.more(missing, wished);
      limit += PAGE;
    } catch (error) {
      onError(error);
    } finally {
      more.disabled = false;
      draw(shown);
    }
  }

  function clear() {
    limit = PAGE;
    kind.value = "";
    list.replaceChildren();
  }

  more.addEventListener("click", showMore);
  kind.addEventListener("change", () => {
    limit = PAGE;
    draw(shown);
    // there may be none of this kind among the newest
    if (store.hasMore() && store.all().filter(wished).length < PAGE) {
      limit = 0;
      showMore();
    }
  });
  return { draw, clear };
}
