/** The clusters of the site, and the user's sign-in to each. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, get, post } from "../api.ts";
import { ClusterSignIn } from "../parts/cluster_sign_in.tsx";
import { notify } from "../parts/frame.tsx";
import { ErrorMessage, Loading } from "../parts/messages.tsx";
import { useRemote } from "../remote.ts";
import type { SignInNeed } from "../text/cluster_sign_in.ts";
import { plural, sentence } from "../text/format.ts";

interface SignInStatus {
  ready: boolean;
  cluster: string;
  host: string | null;
  access: string | null;
  user: string | null;
  sentence: string | null;
}

async function load(signal: AbortSignal): Promise<SignInStatus[]> {
  const { clusters } = await get<{ clusters: { cluster: string }[] }>("/clusters", signal);
  return Promise.all(
    clusters.map(({ cluster }) => post<SignInStatus>("/sbatch-login-status", { cluster }, signal)),
  );
}

/** Without clusters there is nothing to show. */
export function Clusters(): JSX.Element | null {
  const [need, setNeed] = useState<SignInNeed | undefined>();
  const list = useRemote<SignInStatus[]>("clusters", load);
  const signOut = async ({ cluster }: SignInStatus): Promise<void> => {
    try {
      const said = await post<{ runs: number }>("/sbatch-logout", { cluster });
      const go = said.runs ? ` ${plural(said.runs, "job")} there go on.` : "";
      notify(`Signed out of ${cluster}.${go}`);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      notify(`Not signed out. ${sentence(error.message)}`, true);
    }
    list.reload();
  };
  if (list.data?.length === 0) return null;
  return (
    <section class="card account-part" aria-labelledby="clusters">
      <h2 id="clusters">Clusters</h2>
      {list.error && <ErrorMessage error={list.error} again={list.reload} />}
      {!list.data && !list.error && <Loading what="clusters" />}
      <ul class="rows">
        {list.data?.map((row) => (
          <li key={row.cluster}>
            <span>
              <strong>{row.cluster}</strong>
              <span class="sub">{about(row)}</span>
            </span>
            {row.access === "ssh" &&
              (row.ready ? (
                <button type="button" onClick={() => void signOut(row)}>
                  Sign out<span class="hidden"> of {row.cluster}</span>
                </button>
              ) : (
                <button
                  type="button"
                  onClick={() => setNeed({ cluster: row.cluster, host: row.host })}
                >
                  Sign in …<span class="hidden"> to {row.cluster}</span>
                </button>
              ))}
          </li>
        ))}
      </ul>
      {need && (
        <ClusterSignIn
          need={need}
          onClose={() => setNeed(undefined)}
          onSignedIn={() => {
            notify(`Signed in to ${need.cluster}.`);
            list.reload();
          }}
        />
      )}
    </section>
  );
}

function about(row: SignInStatus): string {
  if (row.access !== "ssh") return "needs no sign-in";
  if (row.ready) return row.user ? `signed in as ${row.user}` : "signed in";
  return row.sentence ? sentence(row.sentence) : "not signed in";
}
