"""Reads the result of a run: the value, the exception with its traceback, or why there is none."""

import concurrent.futures
import contextlib
import pickle
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from ...protocol.ids import split_jid
from ..api.errors import ClientError, own
from ..api.replies import RunState
from . import runner
from .pickling import load_cloudpickle
from .worker import call_files

#: Bytes of a result file that are read into memory.
MAX_RESULT = 1024**3
#: Directory of the task of a run with roles, such as one in its own container (the option `task`).
TASK_DIR = "main/0"
#: Characters of a run's last output in a sentence.
MAX_LINES = 300
CANCELED, COMPLETED = "canceled", "completed"


class RemoteTraceback(Exception):
    """The traceback of an exception in the job; it is the cause of the exception in the client."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class Ended(msgspec.Struct, frozen=True):
    """The end of a run. user_canceled: not by a limit."""

    jid: str
    serial: int
    state: str
    reason: str | None
    attempt: int | None
    sentence: str

    @property
    def user_canceled(self) -> bool:
        return self.state == CANCELED and self.reason not in ("timeLimit", "queueLimit")


class Reader(Protocol):
    """The requests that reading a result needs; `Client` has them."""

    def open_file(self, jid: str, name: str, *, serial: int = 0) -> Any: ...
    def why(self, jid: str) -> dict[str, Any]: ...


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of one call: a value, or an exception."""

    value: Any = None
    error: BaseException | None = None

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


def of_run(client: Reader, ended: Ended) -> tuple[bool, list[Outcome]]:
    """Return whether the result is a list, and the outcomes of all calls of an ended run.

    Raises ClientError (callFailed, callRefused, badResult), and errors of the request.
    """
    data = _result_file(client, ended)
    if data is None:
        raise failed(client, ended)
    try:
        header, body = runner.unpack(data)
    except ValueError as e:
        raise own("badResult", f"the result of {ended.jid} is damaged: {e}") from None
    if header.get("serial") != ended.serial or (
        ended.attempt is not None and header.get("attempt") != ended.attempt
    ):
        raise failed(client, ended)  # it belongs to an earlier run or attempt
    if "refused" in header:
        raise own("callRefused", header["refused"])
    return bool(header["many"]), list(_outcomes(header["outcomes"], body))


def _result_file(client: Reader, ended: Ended) -> bytes | None:
    for name in (runner.RESULT, f"{TASK_DIR}/{runner.RESULT}"):
        try:
            with client.open_file(ended.jid, name, serial=ended.serial) as file:
                if file.length > MAX_RESULT:
                    raise _too_large(ended.jid, file.length)
                data: bytes = file.read()
                return data
        except ClientError as e:
            if e.code != "notFound":
                raise
    return None


def _too_large(jid: str, size: int) -> ClientError:
    return ClientError(
        "tooLarge",
        f"the result of {jid} has {size // 1024**2} MiB; the limit is {MAX_RESULT // 1024**2} MiB",
        "write large results into files of the run directory, and return their names",
    )


def _is_warm(client: Reader, ended: Ended) -> bool:
    for folder in ("", f"{TASK_DIR}/"):
        with contextlib.suppress(ClientError):
            client.open_file(ended.jid, folder + call_files.OUTCOMES, serial=ended.serial).close()
            return True
    return False


def check_owner(uid: str, jid: str) -> None:
    """Raise ClientError for a run of another user. uid: the user of the client."""
    if split_jid(jid)[0] != uid:
        raise ClientError(
            "forbidden",
            f"{jid} is a run of another user; results can run code, so only its user reads them",
        )


def of_job(client: Reader, uid: str, state: RunState) -> Any:
    """Return the result of an ended run (of a chunk: the list), or raise its exception.

    uid: the user of the client. A result is a pickle, so only the user of its run may read it: it
    can run any code. Raises CancelledError for a canceled run.
    """
    jid, serial = state.compute_jid, state.compute_job_serial or 0
    check_owner(uid, jid)
    ended = Ended(jid, serial, state.state, state.reason, state.attempt, state.sentence())
    if ended.user_canceled:
        raise concurrent.futures.CancelledError(jid)
    try:
        many, outcomes = of_run(client, ended)
    except ClientError as e:
        if e.code == "callFailed" and _is_warm(client, ended):
            raise ClientError(
                "badRequest",
                f"{jid} is a warm worker, which has no result of its own; name one of its calls",
                "call `result(call=N)`, where N is `future.call`",
            ) from None
        raise
    values = [outcome.get() for outcome in outcomes]
    return values if many else values[0]


def failed(client: Reader, ended: Ended) -> ClientError:
    """Return the error of a run without a result, with the reason of its end."""
    try:
        why = client.why(ended.jid)
    except ClientError:
        why = {}
    sentence = str(why.get("sentence") or ended.sentence)
    if lines := why.get("lastLines"):
        sentence += f"; its last output: {str(lines)[-MAX_LINES:].strip()}"
    error = own("callFailed", f"the run {ended.jid} ended without a result: {sentence}")
    error.advice = error.advice.replace("JOB", ended.jid)
    error.more["computeJid"] = ended.jid
    return error


def _outcomes(rows: list[dict[str, Any]], body: bytes) -> Iterator[Outcome]:
    at = 0
    for row in rows:
        data = body[at : at + row["size"]]
        at += row["size"]
        yield outcome_of(row, data)


def outcome_of(row: dict[str, Any], data: bytes) -> Outcome:
    """Return the outcome of a call from its row, as the runner wrote it."""
    match row["kind"]:
        case "value":
            return _read(data)
        case "raised":
            return Outcome(error=_exception(row, data))
        case "refused":
            return Outcome(error=own("callRefused", row["text"]))
        case _:
            return Outcome(error=own("callFailed", row["text"]))


def _read(data: bytes) -> Outcome:
    load_cloudpickle()
    try:
        return Outcome(value=pickle.loads(data))
    except (Exception, SystemExit) as e:
        said = f"{type(e).__name__}: {runner.text_of(e):.300}"
        return Outcome(error=own("badResult", f"the result cannot be read here: {said}"))


def _exception(row: dict[str, Any], data: bytes) -> BaseException:
    """Return the exception of the function with its remote traceback as the cause."""
    said = f"{row['type']}: {row['text']}"
    error = _read(data).value if data else None
    # KeyboardInterrupt and its like would end the client
    if not isinstance(error, Exception):
        error = own("callFailed", f"the function raised {said}")
    # the class of some exceptions refuses changes
    BaseException.__setattr__(error, "__cause__", RemoteTraceback(row["traceback"]))
    return error
