/** The API tokens of the user: list, create, revoke. The text of a new one is shown once. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { data } from "../api.ts";
import { now } from "../clock.ts";
import { useKept } from "../kept.ts";
import { Dialog } from "../parts/dialog.tsx";
import { notify } from "../parts/frame.tsx";
import { ErrorMessage, Loading } from "../parts/messages.tsx";
import { Table } from "../parts/table.tsx";
import { useRemote } from "../remote.ts";
import { path } from "../site.ts";
import { ago, day, moment, plural } from "../text/format.ts";
import { isDone, useAction } from "./action.tsx";
import { NewToken } from "./new_token.tsx";

export interface Token {
  id: string;
  name: string;
  scopes: string[];
  createdAt: number;
  expiresAt: number;
  lastUsedAt: number | null;
  status: "live" | "revoked" | "expired";
}

const UNUSED = "Not used since the last restart of the supervisor";

export function Tokens(): JSX.Element {
  const [creating, setCreating] = useState(false);
  const [revoking, setRevoking] = useState<Token | undefined>();
  const list = useRemote<{ tokens: Token[] }>("tokens", (signal) => data("token-list", {}, signal));
  const tokens = [...(list.data?.tokens ?? [])].reverse();
  const live = tokens.filter((t) => t.status === "live");
  const ended = tokens.filter((t) => t.status !== "live");
  return (
    <section class="card account-part" aria-labelledby="tokens">
      <div class="account-head">
        <h2 id="tokens">API tokens</h2>
        <button type="button" class="main" onClick={() => setCreating(true)}>
          New token …
        </button>
      </div>
      <p class="soft">
        A token lets the command line and programs on other machines act for you, within its scopes.{" "}
        <a href={path("/docs/site#api-tokens")}>How to use tokens</a>
      </p>
      {list.error && <ErrorMessage error={list.error} again={list.reload} />}
      {!list.data && !list.error && <Loading what="tokens" />}
      {list.data && live.length === 0 && (
        <p class="none">You have no valid token. Create one for each machine that needs it.</p>
      )}
      {live.length > 0 && <TokenTable tokens={live} onRevoke={setRevoking} />}
      {ended.length > 0 && (
        <details>
          <summary>{plural(ended.length, "token")} no longer valid</summary>
          <TokenTable tokens={ended} />
        </details>
      )}
      {creating && <NewToken onClose={() => setCreating(false)} onEnd={list.reload} />}
      {revoking && (
        <Revoke token={revoking} onClose={() => setRevoking(undefined)} onDone={list.reload} />
      )}
    </section>
  );
}

function TokenTable(props: { tokens: Token[]; onRevoke?: (token: Token) => void }): JSX.Element {
  const { onRevoke } = props;
  return (
    <Table
      label={onRevoke ? "Valid tokens" : "Tokens that are no longer valid"}
      class="flat tokens"
      heads={[
        "Name",
        { text: "Scopes", class: "middle" },
        onRevoke ? { text: "Expires", class: "middle" } : "State",
        { text: "Last used", class: "middle" },
        onRevoke && { text: "Action", hidden: true },
      ]}
    >
      {props.tokens.map((token) => (
        <tr key={token.id} data-token={token.id}>
          <th scope="row">
            {token.name}
            <span class="sub mono">{token.id}</span>
            <span class="sub narrow">
              {token.scopes.join(", ")}
              {token.status === "live" && ` · until ${day(token.expiresAt)}`}
            </span>
          </th>
          <td class="middle">{token.scopes.join(", ")}</td>
          <td class={onRevoke ? "number middle" : "number"} title={moment(token.expiresAt)}>
            {token.status === "live" ? day(token.expiresAt) : token.status}
          </td>
          <td
            class="number soft middle"
            title={token.lastUsedAt ? moment(token.lastUsedAt) : UNUSED}
          >
            {token.lastUsedAt ? ago(token.lastUsedAt, now.value) : "not lately"}
          </td>
          {onRevoke && (
            <td class="act">
              <button
                type="button"
                class="danger"
                aria-label={`Revoke ${token.name}`}
                onClick={() => onRevoke(token)}
              >
                Revoke …
              </button>
            </td>
          )}
        </tr>
      ))}
    </Table>
  );
}

function Revoke(props: { token: Token; onClose: () => void; onDone: () => void }): JSX.Element {
  const { token } = props;
  const [reason, setReason, forget] = useKept(`revoke ${token.id}`);
  const action = useAction();
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    const said = await action.run(() =>
      data<{ alsoRevoked: string[] }>("token-revoke", { id: token.id, reason: reason.trim() }),
    );
    props.onDone();
    if (!isDone(said)) return;
    forget();
    const others = said.alsoRevoked.length;
    notify(
      `${token.name} is revoked${others ? `, and ${plural(others, "token")} that it created` : ""}.`,
    );
    props.onClose();
  };
  return (
    <Dialog title={`Revoke ${token.name}?`} onClose={props.onClose}>
      <form onSubmit={(event) => void submit(event)}>
        <p class="soft">
          Programs with this token, and with tokens that it created, are refused from now on. Jobs
          go on.
        </p>
        <label>
          Reason (optional, for the audit trail)
          <input
            name="reason"
            maxLength={1000}
            value={reason}
            onInput={(e) => setReason(e.currentTarget.value)}
          />
        </label>
        {action.problem}
        <div class="buttons">
          <button type="submit" class="danger" disabled={action.busy}>
            Revoke token
          </button>
          <button type="button" onClick={props.onClose}>
            Keep it
          </button>
        </div>
      </form>
    </Dialog>
  );
}
