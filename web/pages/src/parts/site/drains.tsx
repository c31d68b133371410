/** Drain of a host or of the site: no new run starts there, and what runs goes on. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, data } from "../../api.ts";
import { now } from "../../clock.ts";
import { useKept } from "../../kept.ts";
import { loadMe } from "../../me.ts";
import { ago, sentence } from "../../text/format.ts";
import type { DrainRow } from "../../text/site.ts";
import { Dialog } from "../dialog.tsx";
import { notify } from "../frame.tsx";
import { Badge, Nothing, Part } from "./part.tsx";

/** A host, or without driver and host the site. */
export interface Place {
  driver: string;
  host: string;
}

export const SITE: Place = { driver: "", host: "" };

const nameOf = (place: Place): string => place.host || "The site";

/** Begin or end a drain. Repeating the request is harmless. */
async function change(
  place: Place,
  drain: boolean,
  reason: string,
  done: () => void,
): Promise<void> {
  const { driver, host } = place;
  try {
    await data("site/site-drain", { driver, host, drain, reason });
    notify(
      drain
        ? `${nameOf(place)} is drained: new runs wait, what runs goes on.`
        : `${nameOf(place)} starts runs again.`,
    );
  } catch (e) {
    if (!(e instanceof ApiError)) throw e;
    notify(`Not done for ${host || "the site"}. ${sentence(e.message)}`, true, {
      label: "Try again",
      run: () => void change(place, drain, reason, done),
    });
  }
  void loadMe();
  done();
}

export function DrainButton(props: {
  place: Place;
  drained: boolean;
  onDone: () => void;
}): JSX.Element {
  const [asking, setAsking] = useState(false);
  const { place, drained, onDone } = props;
  const what = place.host || "the site";
  return (
    <>
      {drained ? (
        <button type="button" onClick={() => void change(place, false, "", onDone)}>
          End drain
          <span class="hidden"> of {what}</span>
        </button>
      ) : (
        <button type="button" onClick={() => setAsking(true)}>
          {place.host ? (
            <>
              Drain …<span class="hidden"> {what}</span>
            </>
          ) : (
            "Drain the site …"
          )}
        </button>
      )}
      {asking && <DrainDialog place={place} onClose={() => setAsking(false)} onDone={onDone} />}
    </>
  );
}

function DrainDialog(props: {
  place: Place;
  onClose: () => void;
  onDone: () => void;
}): JSX.Element {
  const { place, onClose, onDone } = props;
  const [reason, setReason, forget] = useKept(`drain ${place.driver} ${place.host}`);
  const submit = (event: Event): void => {
    event.preventDefault();
    forget();
    onClose();
    void change(place, true, reason.trim(), onDone);
  };
  return (
    <Dialog title={place.host ? `Drain host ${place.host}?` : "Drain the site?"} onClose={onClose}>
      <form onSubmit={submit}>
        <p class="soft">
          {place.host
            ? "No new run starts there. Waiting runs move to other hosts, if there are any."
            : "New runs are accepted and wait. A banner on all pages says so."}{" "}
          What runs goes on.
        </p>
        <label>
          Reason, for users
          <input
            name="reason"
            maxLength={1000}
            value={reason}
            onInput={(e) => setReason(e.currentTarget.value)}
          />
        </label>
        <div class="buttons">
          <button type="submit" class="danger">
            {place.host ? "Drain host" : "Drain site"}
          </button>
          <button type="button" onClick={onClose}>
            Keep starting runs
          </button>
        </div>
      </form>
    </Dialog>
  );
}

export function Drains(props: { drains: DrainRow[]; onDone: () => void }): JSX.Element {
  const { drains, onDone } = props;
  const isSite = drains.some((d) => d.host === "");
  return (
    <Part
      title="Drains"
      note="For maintenance: nothing new starts, what runs goes on"
      actions={isSite ? undefined : <DrainButton place={SITE} drained={false} onDone={onDone} />}
    >
      {drains.length === 0 ? (
        <Nothing>Nothing is drained. Hosts are on the page of queues and hosts.</Nothing>
      ) : (
        <ul class="hosts">
          {drains.map((d) => (
            <li key={`${d.driver} ${d.host}`}>
              <div class="host-head">
                <h3>{d.host || "The site"}</h3>
                <Badge state="canceled" word="drained" />
                <span class="soft">
                  {ago(d.at, now.value)} by {d.by}
                </span>
                <div class="part-actions">
                  <DrainButton place={d} drained onDone={onDone} />
                </div>
              </div>
              {d.reason && <p>{sentence(d.reason)}</p>}
            </li>
          ))}
        </ul>
      )}
    </Part>
  );
}
