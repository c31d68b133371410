/** The audit trail: requests of users for other users, newest first, by page and actor. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { data } from "../../api.ts";
import { useRemote } from "../../remote.ts";
import { jobPath } from "../../site.ts";
import { moment } from "../../text/format.ts";
import { auditPlace, following, type Paged } from "../../text/paging.ts";
import { ErrorMessage, Loading } from "../messages.tsx";
import { Table } from "../table.tsx";
import { Nothing, Part } from "./part.tsx";

interface AuditEvent {
  at: number;
  version: number;
  event: {
    type: string;
    actor?: string;
    actorRole?: string;
    subject?: string;
    action?: string;
    jid?: string | null;
    outcome?: string;
  };
}

interface AuditReply extends Paged {
  events: AuditEvent[];
}

const PAGE = 200;
const UID = /^[A-Za-z0-9]{8}$/;

const ROLES: Record<string, string> = {
  admin: "administrator",
  groupAdmin: "administrator of a group",
  secretHolder: "administrator",
  operator: "server secret",
};

export function Audit(): JSX.Element {
  const [actor, setActor] = useState("");
  const [pages, setPages] = useState<string[]>([""]);
  const place = pages.at(-1) ?? "";
  const valid = UID.test(actor);
  const trail = useRemote<AuditReply>(
    `audit ${place} ${valid ? actor : ""}`,
    (signal) =>
      data(
        "site/audit",
        { ...auditPlace(place), limit: PAGE, ...(valid ? { actor } : {}) },
        signal,
      ),
    true,
  );
  if (trail.error) return <ErrorMessage error={trail.error} again={trail.reload} />;
  if (!trail.data) return <Loading what="the audit trail" />;
  const { events } = trail.data;
  const next = following(trail.data);
  return (
    <Part
      title="Audit"
      note="What people did for other users. Reads of the same data appear once an hour."
      actions={
        <label class="site-field">
          <span class="hidden">Only of this user id</span>
          <input
            placeholder="Only of user id …"
            maxLength={8}
            value={actor}
            aria-invalid={actor !== "" && !valid}
            onInput={(e) => {
              setPages([""]);
              setActor(e.currentTarget.value.trim());
            }}
          />
        </label>
      }
    >
      {events.length === 0 ? (
        <Nothing>{next === null ? "Nothing is on record." : "Nothing on this page."}</Nothing>
      ) : (
        <Table
          label="Requests of users for other users, newest first"
          class="flat audit"
          heads={["Time", "Who", "Role", "For user", "What", "Job"]}
        >
          {events.map((e) => (
            <tr key={`${e.at} ${e.version}`}>
              <td class="number">{moment(e.at)}</td>
              <td class="mono">{e.event.actor ?? "–"}</td>
              <td>{ROLES[e.event.actorRole ?? ""] ?? e.event.actorRole ?? "–"}</td>
              <td class="mono">{e.event.subject ?? "–"}</td>
              <td>{e.event.action ?? e.event.type}</td>
              <td>
                {e.event.jid ? (
                  <a class="mono" href={jobPath(e.event.jid)}>
                    {e.event.jid.split("-")[1]}
                  </a>
                ) : (
                  "–"
                )}
              </td>
            </tr>
          ))}
        </Table>
      )}
      {(next !== null || pages.length > 1) && (
        <nav class="pages pad" aria-label="Pages of the audit trail">
          {pages.length > 1 && (
            <button type="button" onClick={() => setPages(pages.slice(0, -1))}>
              Newer
            </button>
          )}
          {next !== null && (
            <button type="button" onClick={() => setPages([...pages, next])}>
              Older
            </button>
          )}
        </nav>
      )}
    </Part>
  );
}
