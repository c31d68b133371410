/** Cancel of one or more jobs, with a reason. What could not be done is said, and can be repeated. */

import type { JSX } from "preact";
import { ApiError, data, requestId } from "./api.ts";
import { useKept } from "./kept.ts";
import { Dialog } from "./parts/dialog.tsx";
import { notify } from "./parts/frame.tsx";
import { isOwn } from "./site.ts";
import { plural, sentence } from "./text/format.ts";

interface Order {
  computeJid: string;
  reqId: string;
}

/** Send the cancels. The same orders are sent again on request, so that none counts twice. */
async function send(orders: Order[], reason: string, done: () => void): Promise<void> {
  const failed: Order[] = [];
  let error: ApiError | undefined;
  await Promise.all(
    orders.map(async (order) => {
      try {
        await data("run-cancel", { ...order, reason });
      } catch (e) {
        if (!(e instanceof ApiError)) throw e;
        error = e;
        failed.push(order);
      }
    }),
  );
  const count = orders.length - failed.length;
  if (count) notify(`${plural(count, "job")} canceled.`);
  if (error) {
    notify(`Not canceled: ${plural(failed.length, "job")}. ${sentence(error.message)}`, true, {
      label: "Try again",
      run: () => void send(failed, reason, done),
    });
  }
  done();
}

export function CancelDialog(props: {
  jids: string[];
  onClose: () => void;
  onDone: () => void;
}): JSX.Element {
  const [reason, setReason, forget] = useKept(`cancel ${props.jids.join(" ")}`);
  const many = props.jids.length > 1;
  const foreign = props.jids.filter((jid) => !isOwn(jid)).length;
  const submit = (event: Event): void => {
    event.preventDefault();
    const orders = props.jids.map((computeJid) => ({ computeJid, reqId: requestId() }));
    forget();
    props.onClose();
    void send(orders, reason.trim(), props.onDone);
  };
  return (
    <Dialog
      title={many ? `Cancel ${plural(props.jids.length, "job")}?` : "Cancel this job?"}
      onClose={props.onClose}
    >
      <form onSubmit={submit}>
        <p class="soft">A canceled job stays canceled. Its files and logs are kept.</p>
        {foreign > 0 && (
          <p>
            {foreign === 1
              ? "One belongs to another user, who sees the reason."
              : `${foreign} belong to other users, who see the reason.`}{" "}
            The audit trail names you.
          </p>
        )}
        <label>
          {foreign > 0 ? "Reason" : "Reason (optional)"}
          <input
            name="reason"
            required={foreign > 0}
            maxLength={1000}
            value={reason}
            onInput={(e) => setReason(e.currentTarget.value)}
          />
        </label>
        <div class="buttons">
          <button type="submit" class="danger">
            {many ? "Cancel jobs" : "Cancel job"}
          </button>
          <button type="button" onClick={props.onClose}>
            Keep running
          </button>
        </div>
      </form>
    </Dialog>
  );
}
