// The files of the run that is shown, each with its address for a download.

import { ApiError, address, get } from "./api.js";
import { byId, element, setText } from "./dom.js";
import { isActive, sentenceOf } from "./words.js";

/** Returns {show(run, offered)}; offered: is there an app that says which files are worth a download? */
export function filesView() {
  let drawn = "";

  async function show(run, offered) {
    const { status } = run;
    byId("files-card").hidden = !offered;
    const stamp = `${run.key} ${run.serial} ${status.state} ${(status.frameCount ?? 0) > 0}`;
    if (stamp === drawn) return;
    drawn = stamp;
    let [names, again] = [[], false];
    let none = isActive(status) ? "There are none yet." : "It never started, so there are none.";
    const path = `${run.simulationType}/${run.simulationId}/${run.model}`;
    if (offered && status.computeJobStart) {
      try {
        names = (await get(address(`run-files/${path}`, { computeJobSerial: run.serial }))).files;
        none = "This run has left none.";
      } catch (error) {
        none = error instanceof ApiError ? sentenceOf(error.message) : "They cannot be listed.";
        // when the run is heard of again
        again = error instanceof ApiError && error.isUnreachable;
      }
    }
    if (stamp !== drawn) return;
    if (again) drawn = "";
    byId("files").replaceChildren(...names.map((name) => {
      const query = { suffix: name, computeJobSerial: run.serial };
      return element("li", {}, element("a", { href: address(`download-run-file/${path}/-1`, query).href, download: "" }, name));
    }));
    setText(byId("no-files"), names.length ? "" : none);
  }

  return { show };
}
