"""Reads the outcome of one call of a warm worker, for any process of the worker's user."""

import concurrent.futures
import time
from typing import Any, Protocol

from ..api.errors import ClientError, own
from ..api.replies import RunState
from .outcomes import Ended, Outcome, check_owner, outcome_of
from .warm_worker import WarmWorker

#: Pauses between two looks: the first, the longest.
_FIRST_SECS, _LONGEST_SECS = 0.05, 1.0


class Reader(Protocol):
    """The requests that reading an outcome needs; `Client` has them."""

    def status(self, jid: str, *, serial: int = 0) -> RunState: ...
    def open_file(self, jid: str, name: str, *, serial: int = 0, offset: int = 0) -> Any: ...
    def put_data(
        self, jid: str, name: str, data: bytes, *, serial: int = 0, active: bool = False
    ) -> None: ...


def of_call(
    client: Reader, uid: str, jid: str, serial: int, number: int, timeout: float | None
) -> Any:
    """Wait for a call, and return its value or raise its exception. The worker may go on.

    uid: the user of the client. number: `FunctionFuture.call`. Raises TimeoutError after `timeout`
    seconds, CancelledError, ClientError.
    """
    check_owner(uid, jid)
    if number < 1:
        raise ClientError(
            "badRequest", f"calls of a worker have the numbers 1, 2, ...; not {number}"
        )
    worker = WarmWorker(client, jid, serial)
    end = None if timeout is None else time.monotonic() + timeout
    pause = _FIRST_SECS
    while True:
        # asked first: the outcomes of a run that is over are complete
        state = client.status(jid, serial=serial)
        worker.over = state.finished
        outcome = _outcome(worker, number)
        if outcome is not None:
            return outcome.get()
        if worker.over:
            raise _no_outcome(worker, number, state)
        left = pause if end is None else end - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"call {number} of {jid} has not ended after {timeout} s")
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_SECS)


def _outcome(worker: WarmWorker, number: int) -> Outcome | None:
    try:
        frames = worker.read()
    except ValueError as e:
        raise own("badResult", f"{worker.jid}: {e}") from None
    for header, body in frames:
        if header.get("call") == number and header["kind"] != "late":
            if header["kind"] == "canceled":
                raise concurrent.futures.CancelledError(f"call {number} of {worker.jid}")
            return outcome_of(header, body)
    return None


def _no_outcome(worker: WarmWorker, number: int, state: RunState) -> BaseException:
    """Return the error of a call whose worker ended before it."""
    ended = Ended(
        worker.jid, worker.serial, state.state, state.reason, state.attempt, state.sentence()
    )
    exit_ = state.exit
    known = exit_ is not None and (exit_.code, exit_.signal) != (None, None)
    if ended.user_canceled:
        return concurrent.futures.CancelledError(worker.jid)
    if number > worker.stored:
        text = "the worker did not accept it"
    elif worker.may_have_begun(number, exit_known=known):
        text = "it may have run"
    else:
        text = "it did not run"
    error = own(
        "callFailed",
        f"call {number} of {worker.jid} has no outcome, and {text}; its worker: {ended.sentence}",
    )
    error.advice = error.advice.replace("JOB", worker.jid)
    return error
