// Why a run waits, or ended as it did: asked for when somebody opens the panel, and again whenever the run has changed.

import { ApiError, get } from "./api.js";
import { byId, element, setText } from "./dom.js";
import { plain, showTerminal } from "./terminal.js";
import { sentenceOf } from "./words.js";

const SURE = {
  certain: "This is certain.", likely: "This is likely.", possible: "This is possible; nothing shows it for sure.",
  unknown: "Who or what did it is not known.",
};
const STATES = new Set(["pending", "running", "error", "canceled"]);

/** show(said): {path, stamp, state} of the run that is shown; stamp changes with it. */
export function whyView() {
  const panel = byId("why");
  let wanted = null;
  let drawn = "";

  panel.addEventListener("toggle", () => refresh());

  function show(said) {
    if (wanted && String(wanted.path) !== String(said.path)) {
      drawn = "";
      draw({ sentence: "" });
    }
    wanted = said;
    panel.hidden = !STATES.has(said.state);
    refresh();
  }

  async function refresh() {
    const said = wanted;
    if (!said || panel.hidden || !panel.open || drawn === said.stamp) return;
    drawn = said.stamp;
    try {
      const answer = await get(said.path);
      if (wanted?.stamp === said.stamp) draw(answer);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (wanted !== said) return;
      drawn = "";
      draw({ sentence: error.message });
    }
  }

  function draw(answer) {
    setText(byId("why-sentence"), [sentenceOf(answer.sentence), SURE[answer.confidence]].filter(Boolean).join(" "));
    byId("why-lists").replaceChildren(
      ...section("What shows it", answer.evidence), ...section("What it is not", answer.not), ...section("What to try", answer.try),
    );
    const last = answer.traceback?.last ?? answer.terminationMessage ?? "";
    byId("why-last").hidden = !last;
    showTerminal(byId("why-last"), last);
  }

  return { show };
}

function section(title, lines) {
  if (!lines?.length) return [];
  return [element("h3", {}, title), element("ul", {}, ...lines.map((line) => element("li", {}, plain(line))))];
}
