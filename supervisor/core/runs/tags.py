"""Tags of jobs: their users add and remove them at any time."""

from ....db.events.events import TagsChanged
from ....protocol.api.requests import MAX_TAGS
from ....protocol.errors import Refusal
from ..interface.effects import ReplyStatus
from ..interface.inputs import ChangeTags
from ..state.transaction import Transaction
from ..state.world import owner


def change(tx: Transaction, input_: ChangeTags) -> None:
    """Add and remove tags. Raise Refusal, with the same answer for an unknown job and for a job of
    another user.
    """
    request = input_.request
    job = tx.world.jobs.get(request.compute_jid)
    if job is None or job.run is None or owner(job.jid) != request.uid:
        raise Refusal("notFound", f"there is no job {request.compute_jid}")
    before, both = set(job.tags), set(request.add) & set(request.remove)
    if both:
        raise Refusal("badRequest", f"the tag {min(both)!a} cannot be both added and removed")
    after = (before | set(request.add)) - set(request.remove)
    if len(after) > MAX_TAGS and len(after) > len(before):
        raise Refusal(
            "badRequest",
            f"the job would have {len(after)} tags; at most {MAX_TAGS} are possible",
            {"advice": f"remove tags first: jobscribe job tag {job.jid} remove TAG"},
        )
    if after != before:
        event = TagsChanged(
            at=tx.now.wall,
            by=request.uid,
            added=tuple(sorted(after - before)),
            removed=tuple(sorted(before - after)),
        )
        tx.record(job.jid, event)
    tx.emit(ReplyStatus(input_.handle, job.jid, job.run.serial))
