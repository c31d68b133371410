"""`jobscribe debug continue`: let stopped processes of a job go on."""

import contextlib
import json
from typing import TYPE_CHECKING, Any

import click

from ...client.api.errors import ClientError
from ...protocol.errors import Refusal
from ..session.session import command, session
from .breakpoints import place, rank, stops_of
from .message_lines import MessageLines, MessageTooLong

if TYPE_CHECKING:
    from ...client.sync_client import Client

_OUTPUT_CHARS, _POLL_SECS = 64 * 1024, 10.0


@command(name="continue")
@click.argument("name", metavar="JOB|ID")
def resume(name: str) -> None:
    """Continue all stopped processes of a job, such as the other ranks of an MPI program, or the one
    with this ID. Processes to which a user is attached stay stopped.

    Exits with 1 if a process could not be continued.
    """
    s = session()
    continued, failed = list[str](), dict[str, str]()
    waiting = [stop for stop in stops_of(s, name) if not stop["attached"]]
    for number, stop in enumerate(waiting):
        s.screen.progress(f"{number} of {len(waiting)} processes continued", 0.0)
        about = f"{stop['id']}{rank(stop)}, pid {stop['pid']} on {stop['host']}, {place(stop)}"
        try:
            _continue(s.client_for(stop["computeJid"]), stop)
        except (ClientError, Refusal) as e:
            failed[stop["id"]] = e.sentence
            s.screen.message(f"{about}: {e.sentence}")
        else:
            continued.append(stop["id"])
            if not s.screen.json:
                s.screen.line(f"continued {about}")
    if s.screen.json:
        value = {"continued": continued, "failed": failed}
        s.screen.value("jobscribe.debug.continue/1", value)
    elif not waiting:
        s.screen.message(f"no process of {name} waits for a debugger")
    if failed:
        raise SystemExit(1)


def _continue(client: "Client", stop: dict[str, Any]) -> None:
    """Attach, continue, and leave when the process goes on. Raises Refusal, ClientError."""
    session_ = client.debug_attach(stop["computeJid"], stop["id"])["session"]
    lines, typed = MessageLines(), False
    try:
        while True:
            answer = client.debug_io(session_, limit=_OUTPUT_CHARS, wait_secs=_POLL_SECS)
            for message in lines.messages(answer["data"]):
                if dict(message.get("hello") or {}).get("protocol") == "dap":
                    raise Refusal(
                        "badRequest",
                        f"it waits for an IDE, which continues it: jobscribe debug attach {stop['id']} --port 5678",
                    )
                if "prompt" in message and not typed:
                    typed = True
                    client.debug_io(session_, json.dumps({"line": "continue"}) + "\n")
                if "running" in message or "end" in message:
                    return
            if answer["end"]:
                return
    except MessageTooLong as e:
        raise Refusal("badRequest", str(e)) from None
    finally:
        with contextlib.suppress(ClientError, Refusal):
            client.debug_io(session_, close=True)
