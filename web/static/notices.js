// Banners above the page. Each has an owner, which names its subject. A banner is removed when its subject succeeds or is over. If its cause
// is that the site does not answer, it is removed as soon as the site answers. The reader can close it earlier.

import { byId, element } from "./dom.js";
import { sentenceOf } from "./words.js";

/** How often to look whether the site answers again, while a banner waits for that. */
const PROBE_MS = 3000;

/** isBack(): resolves if the site answers. Returns {show, clear, clearAll, back}. */
export function noticeBoard(isBack) {
  const notices = new Map();
  let timer = 0;

  /** unreachable: the cause is that the site does not answer. A banner that the reader closed stays closed while its text is the same. */
  function show(owner, { message, advice, unreachable = false }) {
    const said = `${message}\n${advice}`;
    if (notices.get(owner)?.said === said) return;
    clear(owner);
    const close = element("button", { type: "button", className: "quiet" }, "Close");
    const notice = element("div", { className: "notice", role: "alert" },
      element("div", {}, element("strong", {}, sentenceOf(message)), element("p", {}, sentenceOf(advice))), close);
    close.addEventListener("click", () => notice.remove());
    notices.set(owner, { said, unreachable, notice });
    byId("notices").append(notice);
    if (unreachable && !timer) timer = setTimeout(probe, PROBE_MS);
  }

  function clear(...owners) {
    for (const owner of owners) {
      notices.get(owner)?.notice.remove();
      notices.delete(owner);
    }
  }

  const waiting = () => [...notices].filter(([, { unreachable }]) => unreachable).map(([owner]) => owner);

  /** The site answers. */
  const back = () => clear(...waiting());

  async function probe() {
    try {
      if (waiting().length) await isBack();
      back();
    } catch {
      // the banners say so already
    }
    timer = waiting().length ? setTimeout(probe, PROBE_MS) : 0;
  }

  return { show, clear, clearAll: () => clear(...notices.keys()), back };
}
