/** Queues with their shares, the turns of their users, use of slots, and the user's limits. */

import type { JSX } from "preact";
import { duration } from "../../text/format.ts";
import {
  coreTime,
  limitAmount,
  limitBeyond,
  limitName,
  megabytes,
  type QueueRow,
  type QueuesReply,
  type SlotRow,
} from "../../text/site.ts";
import { Table } from "../table.tsx";
import { Meter, Nothing, Part } from "./part.tsx";

const slotLabel = (slot: SlotRow): string =>
  [
    slot.batch ? `Slurm ${slot.host}` : slot.driver,
    slot.batch || slot.host === "localhost" ? null : slot.host,
    slot.batch ? null : slot.kind,
  ]
    .filter(Boolean)
    .join(", ");

function slotText(slot: SlotRow): string {
  const { used, total, waiting, siteTotal = total, siteUsed = used } = slot;
  return [
    `${used} of ${total}`,
    waiting ? `${waiting} wait` : null,
    siteTotal === total ? null : `${siteUsed} of ${siteTotal} on the whole site`,
  ]
    .filter(Boolean)
    .join(" · ");
}

export function Slots({ reply }: { reply: QueuesReply }): JSX.Element {
  const used = reply.slots.filter((s) => (s.siteTotal ?? s.total) > 0);
  return (
    <Part title="In use now" note="Slots for runs without roles">
      <div class="meters">
        {used.map((s) => (
          <Meter
            key={`${s.driver} ${s.host} ${s.kind}`}
            label={slotLabel(s)}
            used={s.used}
            total={s.total}
            text={slotText(s)}
          />
        ))}
      </div>
    </Part>
  );
}

function whoMay(queue: QueueRow): string {
  if (queue.mine !== null) return queue.mine ? "you may use it" : "not for you";
  if (queue.open) return "everybody";
  return [...(queue.users ?? []), ...(queue.plans ?? []).map((plan) => `plan ${plan}`)].join(", ");
}

export function QueueTable({ reply }: { reply: QueuesReply }): JSX.Element {
  return (
    <Part title="Queues">
      <Table
        label="Queues with their shares and what runs in them"
        heads={[
          "Queue",
          "Share",
          "Running",
          "Waiting",
          "Cores",
          "GPUs",
          "Idle shares of others",
          "For",
        ]}
      >
        {reply.queues.map((q) => (
          <tr key={q.queue}>
            <th scope="row">{q.queue}</th>
            <td class="number">
              {q.share} <span class="soft">({Math.round(q.part * 100)} %)</span>
            </td>
            <td class="number">{q.running}</td>
            <td class="number">{q.waiting}</td>
            <td class="number">{q.cores}</td>
            <td class="number">{q.gpus}</td>
            <td>{q.borrow ? "may be used" : "not used"}</td>
            <td>{whoMay(q)}</td>
          </tr>
        ))}
      </Table>
    </Part>
  );
}

export function Turns({ reply }: { reply: QueuesReply }): JSX.Element {
  const half = duration(reply.halfLifeSecs);
  const note = reply.all
    ? `The next free slot of a queue goes to its first waiting user here. Use loses half of its weight every ${half}.`
    : `Users who used less go first. Use loses half of its weight every ${half}.`;
  const most = Math.max(...reply.accounts.map((a) => a.level), 1);
  return (
    <Part title={reply.all ? "Turns of users" : "Your turn"} note={note}>
      {reply.accounts.length === 0 ? (
        <Nothing>Nobody has used anything yet.</Nothing>
      ) : (
        <Table
          label="Users with their recent use, the next one first"
          heads={[
            "Queue",
            reply.all && "User",
            "Recent core time",
            "Running",
            "Waiting",
            "Cores",
            "GPUs",
            "Memory",
          ]}
        >
          {reply.accounts.map((a) => (
            <tr key={`${a.queue} ${a.uid}`}>
              <td>{a.queue}</td>
              {reply.all && (
                <td title={a.uid}>{reply.names[a.uid] ?? <span class="mono">{a.uid}</span>}</td>
              )}
              <td class="number">
                <span class="progress">
                  {reply.all && (
                    <progress
                      max={100}
                      value={Math.round((a.level / most) * 100)}
                      aria-label="Compared with the others"
                    />
                  )}
                  {coreTime(a.level)}
                </span>
              </td>
              <td class="number">{a.running}</td>
              <td class="number">{a.waiting}</td>
              <td class="number">{a.cores}</td>
              <td class="number">{a.gpus}</td>
              <td class="number">{a.memoryMb ? megabytes(a.memoryMb) : "–"}</td>
            </tr>
          ))}
        </Table>
      )}
    </Part>
  );
}

export function Limits({ reply }: { reply: QueuesReply }): JSX.Element {
  return (
    <Part title="Your limits">
      {reply.limits.length === 0 ? (
        <Nothing>This site sets you no limits.</Nothing>
      ) : (
        <div class="meters">
          {reply.limits.map((l) => (
            <div key={l.limit}>
              <Meter
                label={limitName(l.limit)}
                used={l.used ?? 0}
                total={l.used === null ? null : l.most}
                text={
                  l.used === null
                    ? `at most ${limitAmount(l.limit, l.most)}`
                    : `${limitAmount(l.limit, l.used)} of ${limitAmount(l.limit, l.most)}`
                }
              />
              <p class="sub">Beyond it: {limitBeyond(l.limit)}</p>
            </div>
          ))}
        </div>
      )}
    </Part>
  );
}
