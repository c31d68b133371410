"""The profiles of a job, as files of its run directory."""

import fnmatch
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...protocol.errors import Refusal
from ...protocol.jobs import profiling
from ...protocol.jobs.profiling import Artifact
from ..session.session import Session

if TYPE_CHECKING:
    from ...client.sync_client import Client

#: Largest note that is read.
_NOTE_BYTES = 4096


class Found(NamedTuple):
    """artifact: parsed name. state: `recording`, `complete`, `cut` (at the size limit) or
    `unavailable`. reason: the sentence of an unavailable profile.
    """

    artifact: Artifact
    size: int
    mtime: float
    state: str
    reason: str = ""

    @property
    def name(self) -> str:
        """Return the name that users type."""
        return f"{self.artifact.task}/{self.artifact.file}"

    @property
    def overhead(self) -> str:
        return profiling.OVERHEAD.get(self.artifact.tool, "-")


def artifacts(s: Session, client: "Client", jid: str) -> list[Found]:
    """Return the profiles of a job in order. Raises Refusal, ClientError."""
    state = client.status(jid)
    live = str(state.raw.get("computeJobSerial")) if not state.raw.get("over", True) else ""
    begun, out = time.monotonic(), []
    for count, file in enumerate(client.files(jid), 1):
        s.screen.progress(f"{count} files listed", time.monotonic() - begun)
        artifact = profiling.artifact(file["name"])
        if artifact is not None and (artifact.note or file["size"] > 0):
            out.append(_found(client, jid, artifact, file, live))
    return out


def chosen(found: Sequence[Found], name: str, jid: str) -> list[Found]:
    """Return the profiles with this name, which may be a pattern. Raises Refusal (notFound)."""
    profiles = [f for f in found if not f.artifact.note]
    wanted = [f for f in profiles if name in (f.name, f.artifact.file)] or [
        f for f in profiles if fnmatch.fnmatchcase(f.name, name)
    ]
    return wanted or _missing(found, jid, f" with the name {name}" if profiles else "")


def all_profiles(found: Sequence[Found], jid: str) -> list[Found]:
    """Return all that are no notes. Raises Refusal (notFound)."""
    return [f for f in found if not f.artifact.note] or _missing(found, jid, "")


def _missing(found: Sequence[Found], jid: str, which: str) -> Any:
    reasons = [f.reason for f in found if f.reason]
    sentence = f"{jid} has no profile{which}"
    if reasons and not which:
        sentence += f": {reasons[0]}"
    raise Refusal(
        "notFound",
        sentence,
        {
            "advice": f"jobscribe profile list {jid}"
            if which or reasons
            else "submit with --profile cpu, mem or gpu; profiles go after retention.profiles_secs"
        },
    )


def _found(
    client: "Client", jid: str, artifact: Artifact, file: dict[str, Any], live: str
) -> Found:
    if artifact.note:
        with client.open_file(jid, artifact.name, length=_NOTE_BYTES) as note:
            reason = note.read().decode("utf-8", "replace")
        state = "limit" if artifact.tool == profiling.LIMIT else "unavailable"
        return Found(artifact, file["size"], file["mtime"], state, reason)
    recording = artifact.task.partition("-")[0] == live
    cut = file["size"] >= profiling.FILE_BYTES and artifact.ending != "bin"
    state = "cut" if cut else "recording" if recording else "complete"
    return Found(artifact, file["size"], file["mtime"], state)
