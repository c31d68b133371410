/** Users with their roles, and the API tokens of all users, which an administrator can revoke. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, data } from "../../api.ts";
import { now } from "../../clock.ts";
import { useKept } from "../../kept.ts";
import { useRemote } from "../../remote.ts";
import { ago, duration, moment, plural, sentence } from "../../text/format.ts";
import { Dialog } from "../dialog.tsx";
import { notify } from "../frame.tsx";
import { ErrorMessage, Loading } from "../messages.tsx";
import { Table } from "../table.tsx";
import { Badge, Nothing, Part } from "./part.tsx";

interface UserRow {
  uid: string;
  name: string | null;
  role: string;
  groups: string[];
  active: number;
  tokens: number;
}

const ROLES: Record<string, string> = {
  admin: "administrator",
  groupAdmin: "administrator of a group",
  user: "user",
};

export function Users(): JSX.Element {
  const users = useRemote<{ users: UserRow[]; total: number }>("site-users", (signal) =>
    data("site/site-users", {}, signal),
  );
  if (users.error) return <ErrorMessage error={users.error} again={users.reload} />;
  if (!users.data) return <Loading what="users" />;
  const rows = users.data.users;
  return (
    <Part title="Users" note="With a role, an API token or an active run">
      {rows.length === 0 ? (
        <Nothing>There is no such user.</Nothing>
      ) : (
        <Table
          label="Users"
          heads={["User", "Id", "Role", "Groups", "Active runs", "Valid tokens"]}
        >
          {rows.map((u) => (
            <tr key={u.uid}>
              <th scope="row">{u.name ?? "–"}</th>
              <td class="mono">{u.uid}</td>
              <td>{ROLES[u.role] ?? u.role}</td>
              <td>{u.groups.join(", ") || "–"}</td>
              <td class="number">{u.active}</td>
              <td class="number">{u.tokens}</td>
            </tr>
          ))}
        </Table>
      )}
      {users.data.total > rows.length && (
        <Nothing>{plural(users.data.total - rows.length, "more user")}.</Nothing>
      )}
      <Nothing>Roles and groups are in the file of users of this site.</Nothing>
    </Part>
  );
}

interface TokenRow {
  id: string;
  uid: string;
  user: string | null;
  name: string;
  scopes: string[];
  createdAt: number;
  expiresAt: number;
  createdBy: string;
  status: "live" | "expired" | "revoked";
}

const STATUS: Record<TokenRow["status"], [string, string]> = {
  live: ["completed", "valid"],
  expired: ["canceled", "expired"],
  revoked: ["error", "revoked"],
};

export function Tokens(): JSX.Element {
  const [all, setAll] = useState(false);
  const [revoking, setRevoking] = useState<TokenRow>();
  const tokens = useRemote<{ tokens: TokenRow[]; total: number }>(
    `site-tokens ${all}`,
    (signal) => data("site/site-tokens", { live: !all }, signal),
    true,
  );
  if (tokens.error) return <ErrorMessage error={tokens.error} again={tokens.reload} />;
  if (!tokens.data) return <Loading what="tokens" />;
  const rows = tokens.data.tokens;
  return (
    <Part
      title="API tokens"
      note={plural(tokens.data.total, "token")}
      actions={
        <label class="tick">
          <input type="checkbox" checked={all} onChange={() => setAll(!all)} />
          Expired and revoked, too
        </label>
      }
    >
      {rows.length === 0 ? (
        <Nothing>No user has a valid API token.</Nothing>
      ) : (
        <Table
          label="API tokens"
          class="flat tokens"
          heads={[
            "Token",
            "User",
            "State",
            "Scopes",
            "Created",
            "Expires",
            { text: "Revoke", hidden: true },
          ]}
        >
          {rows.map((t) => (
            <tr key={t.id} data-token={t.id}>
              <th scope="row">
                {t.name} <span class="sub mono">{t.id}</span>
              </th>
              <td>{t.user ?? <span class="mono">{t.uid}</span>}</td>
              <td>
                <Badge state={STATUS[t.status][0]} word={STATUS[t.status][1]} />
              </td>
              <td>{t.scopes.join(", ")}</td>
              <td class="number" title={moment(t.createdAt)}>
                {ago(t.createdAt, now.value)}
                {t.createdBy !== t.uid && <span class="sub"> by {t.createdBy}</span>}
              </td>
              <td class="number" title={moment(t.expiresAt)}>
                {t.expiresAt > now.value
                  ? `in ${duration(t.expiresAt - now.value)}`
                  : ago(t.expiresAt, now.value)}
              </td>
              <td>
                {t.status === "live" && (
                  <button type="button" class="danger" onClick={() => setRevoking(t)}>
                    Revoke …
                  </button>
                )}
              </td>
            </tr>
          ))}
        </Table>
      )}
      {revoking && (
        <RevokeDialog
          token={revoking}
          onClose={() => setRevoking(undefined)}
          onDone={tokens.reload}
        />
      )}
    </Part>
  );
}

/** Revoke a token. Repeating the request is harmless. */
async function revoke(token: TokenRow, reason: string, done: () => void): Promise<void> {
  try {
    const reply = await data<{ alsoRevoked: string[] }>("site/token-revoke", {
      uid: token.uid,
      id: token.id,
      reason,
    });
    const more = reply.alsoRevoked.length;
    const also = more
      ? ` So ${more === 1 ? "is" : "are"} ${plural(more, "token")} that it created.`
      : "";
    notify(`The token ${token.name} is revoked.${also}`);
  } catch (e) {
    if (!(e instanceof ApiError)) throw e;
    notify(`Not revoked: ${token.name}. ${sentence(e.message)}`, true, {
      label: "Try again",
      run: () => void revoke(token, reason, done),
    });
  }
  done();
}

function RevokeDialog(props: {
  token: TokenRow;
  onClose: () => void;
  onDone: () => void;
}): JSX.Element {
  const [reason, setReason, forget] = useKept(`revoke ${props.token.id}`);
  const submit = (event: Event): void => {
    event.preventDefault();
    forget();
    props.onClose();
    void revoke(props.token, reason.trim(), props.onDone);
  };
  return (
    <Dialog title="Revoke this API token?" onClose={props.onClose}>
      <form onSubmit={submit}>
        <p class="soft">
          {props.token.name} of {props.token.user ?? props.token.uid} is refused from now on, and so
          are tokens that it created. Runs go on.
        </p>
        <label>
          Reason, for the record
          <input
            name="reason"
            required
            maxLength={1000}
            value={reason}
            onInput={(e) => setReason(e.currentTarget.value)}
          />
        </label>
        <div class="buttons">
          <button type="submit" class="danger">
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
