"""Reports of a keeper as the wire's types: `ExecutionReport` and `Hello` decoded once. Pure. Keepers of
other versions may leave out fields or have more of them.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from ...protocol.errors import Refusal
from ...protocol.ids import Token, op_id, parse_token
from ...protocol.jobs.execution_state import ExecutionState
from ...protocol.launch.keeper_reports import Hello
from ...protocol.launch.message_fields import decode
from ...protocol.wire.messages import Execution

#: A keeper reports no execution before it started.
_STATES = (ExecutionState.RUNNING, ExecutionState.ENDED)
#: Fields of `ExecutionReport` as they are on the pipe, with their names in `Execution`.
_FIELDS = {
    "state": "state",
    "pid": "pid",
    "startTicks": "startTicks",
    "startedAt": "startedAt",
    "elapsed": "elapsedSecs",
    "exit": "exit",
}
#: Fields that the hello of an old keeper may lack.
_OLD_HELLO = {"log": None, "cgroups": "not wanted", "pings": False, "runsAhead": False}


class Reported(msgspec.Struct, frozen=True):
    """One execution as its keeper reports it. run_dir: None if the keeper does not know it."""

    execution: Execution
    run_dir: str | None = None


def decode_hello(message: Mapping[str, Any]) -> Hello:
    """Return a hello. Its executions are messages for `decode_report`."""
    return decode(Hello, {**_OLD_HELLO, **message})


def decode_report(message: Mapping[str, Any]) -> Reported:
    """Return a report. Raises Refusal or msgspec.ValidationError."""
    token: Token = parse_token(message["token"])
    if message["state"] not in _STATES:
        raise Refusal(
            "malformed", f"the keeper reports the unknown state {message['state']!r} of {token}"
        )
    fields = {to: message[at] for at, to in _FIELDS.items() if message.get(at) is not None}
    if message.get("successor"):
        fields["successor"] = parse_token(message["successor"])
    fields |= {"token": token, "opId": op_id(token, "run")}
    return Reported(msgspec.convert(fields, Execution), message.get("runDir"))
