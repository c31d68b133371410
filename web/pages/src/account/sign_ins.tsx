/** The browsers in which the user is signed in, and the login of a machine. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, data } from "../api.ts";
import { now } from "../clock.ts";
import { notify } from "../parts/frame.tsx";
import { ErrorMessage, Loading } from "../parts/messages.tsx";
import { useRemote } from "../remote.ts";
import { site } from "../site.ts";
import { ago, day, plural, sentence } from "../text/format.ts";

interface SignIn {
  id: string;
  begun: number;
  until: number;
  browser: string;
  current: boolean;
}

/** Sign-ins in the list at first. */
const SHOWN = 5;

interface SignInsReply {
  kept: boolean;
  signIns: SignIn[];
}

export function SignIns(): JSX.Element {
  const list = useRemote<SignInsReply>("sign-ins", (signal) => data("sign-ins", {}, signal));
  const end = async (row: SignIn): Promise<void> => {
    try {
      await data("sign-in-end", { id: row.id });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      notify(`Not ended. ${sentence(error.message)}`, true, {
        label: "Try again",
        run: () => void end(row),
      });
      return;
    }
    if (row.current) location.assign(site.home || site.base || "/");
    else notify("Signed out there.");
    list.reload();
  };
  return (
    <section class="card account-part" aria-labelledby="sign-ins">
      <div class="account-head">
        <h2 id="sign-ins">Where you are signed in</h2>
        {site.device && (
          <a class="button" href={site.device} target="_self">
            Log a machine in
          </a>
        )}
      </div>
      {list.error && <ErrorMessage error={list.error} again={list.reload} />}
      {!list.data && !list.error && <Loading what="sign-ins" />}
      {list.data && !list.data.kept && (
        <p class="soft">This site signs you in itself. Sign out there.</p>
      )}
      {list.data?.kept && <Rows rows={list.data.signIns} onEnd={end} />}
    </section>
  );
}

function Rows(props: { rows: SignIn[]; onEnd: (row: SignIn) => Promise<void> }): JSX.Element {
  const [all, setAll] = useState(false);
  const rows = [...props.rows].sort((a, b) => Number(b.current) - Number(a.current));
  const more = rows.length - SHOWN;
  return (
    <>
      <ul class="rows">
        {rows.slice(0, all ? undefined : SHOWN).map((row) => (
          <li key={row.id} data-current={row.current}>
            <span>
              <strong>{row.browser || "A browser"}</strong>
              {row.current && <span class="here">this browser</span>}
              <span class="sub">
                {row.begun ? `signed in ${ago(row.begun, now.value)} · ` : ""}
                until {day(row.until)}
              </span>
            </span>
            <button type="button" onClick={() => void props.onEnd(row)}>
              Sign out
              <span class="hidden">
                {row.current ? " of this browser" : ` of ${row.browser || "the other browser"}`}
              </span>
            </button>
          </li>
        ))}
      </ul>
      {more > 0 && !all && (
        <button type="button" onClick={() => setAll(true)}>
          {plural(more, "more sign-in")}
        </button>
      )}
    </>
  );
}
