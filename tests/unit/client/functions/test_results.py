"""Files of function calls: damage is found, and only the result of this run and attempt counts."""

import base64
import os
import pickle
import sys
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from jobscribe.client.api.errors import ClientError
from jobscribe.client.api.replies import RunState
from jobscribe.client.functions import calls, outcomes, runner
from jobscribe.client.functions.outcomes import Ended, RemoteTraceback, of_job, of_run

JID = "uuuuuuuu-ssssssss-call000001"


class Files:
    """A client whose runs have these files."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files, self._name = files, ""

    def open_file(self, jid: str, name: str, *, serial: int = 0) -> Any:
        if name not in self._files:
            raise ClientError("notFound", f"no {name}")
        self._name = name
        return self

    def why(self, jid: str) -> dict[str, Any]:
        return {"sentence": "killed by SIGKILL", "lastLines": "the last line\n"}

    @property
    def length(self) -> int:
        return len(self._files[self._name])

    def read(self) -> bytes:
        return self._files[self._name]

    def __enter__(self) -> "Files":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def ended(**fields: Any) -> Ended:
    values = {
        "jid": JID,
        "serial": 7,
        "state": "completed",
        "reason": "exit",
        "attempt": None,
        "sentence": "completed",
    }
    return Ended(**{**values, **fields})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
    """`run(function, *args, ...)`: call a function as the program of a job, and return its result file."""
    place = tmp_path / "command" / "sid" / "call000001"
    place.mkdir(parents=True)
    for name, value in {"RUN_DIR": str(place), "SERIAL": "7", "ATTEMPT": "2"}.items():
        monkeypatch.setenv(f"JOBSCRIBE_{name}", value)

    def run(function: Any, *chunk: Any, data: bytes | None = None, code: int = 0) -> bytes:
        if data is None:
            many = len(chunk) > 1
            arguments = [(args, {}) for args in chunk]
            data = calls.payload(
                function, arguments, many=many, inline_bytes=10_000, max_bytes=100_000
            ).data
        words = ["inline", base64.b64encode(zlib.compress(data)).decode()]  # as earlier clients
        assert runner.main(words) == code
        return (place / runner.RESULT).read_bytes()

    return run


def read(data: bytes, **fields: Any) -> Any:
    many, outcomes = of_run(Files({runner.RESULT: data}), ended(**fields))
    return [o.get() for o in outcomes] if many else outcomes[0].get()


def other(header: dict[str, str]) -> bytes:
    here = {"python": "{}.{}".format(*sys.version_info), "cloudpickle": cloudpickle.__version__}
    return runner.pack({**here, **header}, pickle.dumps((abs, [((-1,), {})])))


def test_values_and_chunks_come_back(run: Callable[..., bytes]) -> None:
    assert read(run(abs, (-3,))) == 3
    assert read(run(divmod, (7, 2), (9, 4))) == [(3, 1), (2, 1)]


def test_each_truncated_or_changed_file_is_refused() -> None:
    whole = runner.pack({"a": 1}, b"body")
    assert runner.unpack(whole) == ({"a": 1}, b"body")
    for n in range(len(whole)):
        for damaged in (whole[:n], whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :]):
            with pytest.raises(ValueError):
                runner.unpack(damaged)


def test_a_damaged_result_is_an_error(run: Callable[..., bytes]) -> None:
    data = run(abs, (-3,))
    for damaged in (data[:-1], data[:-1] + b"x", b""):
        with pytest.raises(ClientError) as e:
            read(damaged)
        assert e.value.code == "badResult"


def test_a_result_of_an_earlier_run_or_attempt_does_not_count(run: Callable[..., bytes]) -> None:
    data = run(abs, (-3,))
    assert read(data, attempt=2) == 3
    for fields in ({"serial": 8}, {"attempt": 3, "state": "error"}):
        with pytest.raises(
            ClientError, match=r"without a result: killed by SIGKILL.*the last line"
        ):
            read(data, **fields)


def test_a_result_above_the_limit_is_not_read(
    run: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = run(abs, (-3,))
    monkeypatch.setattr(outcomes, "MAX_RESULT", len(data) - 1)
    with pytest.raises(ClientError, match="the limit is") as e:
        read(data)
    assert e.value.code == "tooLarge"


def test_a_task_in_a_directory_of_its_own_is_found(run: Callable[..., bytes]) -> None:
    files = Files({f"main/0/{runner.RESULT}": run(abs, (-3,))})
    assert of_run(files, ended())[1][0].get() == 3


def test_an_exception_keeps_its_traceback(run: Callable[..., bytes]) -> None:
    with pytest.raises(ZeroDivisionError) as e:
        read(run(lambda a: a / 0, (1,), code=1))
    assert isinstance(e.value.__cause__, RemoteTraceback)
    assert "ZeroDivisionError" in str(e.value.__cause__) and "<lambda>" in str(e.value.__cause__)


def test_other_pythons_and_packages_are_reported_before_the_call(run: Callable[..., bytes]) -> None:
    run(abs, (-3,))  # a result of an earlier run, which must not remain
    for header, said in (
        ({"python": "3.9"}, "comes from Python 3.9"),
        ({"cloudpickle": "0.1"}, "comes from cloudpickle 0.1"),
    ):
        with pytest.raises(ClientError, match=said) as e:
            read(run(None, data=other(header), code=78))
        assert e.value.code == "callRefused"


def test_a_module_that_is_missing_is_named(run: Callable[..., bytes]) -> None:
    class Missing:
        def __reduce__(self) -> Any:
            return __import__, ("no_such_module",)

    with pytest.raises(ClientError, match=r"no_such_module.*register_pickle_by_value"):
        read(run(abs, (Missing(),), code=78))


def test_results_that_cannot_be_pickled_and_exits_have_advice(run: Callable[..., bytes]) -> None:
    with pytest.raises(ClientError, match="return plain data"):
        read(run(threading.Lock, (), code=1))
    with pytest.raises(ClientError, match=r"sys.exit\('no'\)"):
        read(run(sys.exit, ("no",), code=1))
    with pytest.raises(ClientError, match="KeyboardInterrupt"):
        read(run(lambda: (_ for _ in ()).throw(KeyboardInterrupt), (), code=1))


def test_arguments_in_a_file_are_removed_after_success_only(
    run: Callable[..., bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "command" / "lib"
    folder.mkdir()
    for function, left in ((abs, False), (str.upper, True)):
        packed = calls.payload(function, [((-1,), {})], many=False, inline_bytes=0, max_bytes=9999)
        assert not packed.inline
        (folder / "x.bin").write_bytes(packed.data)
        assert runner.main(["file", "x.bin"]) == int(left)
        assert (folder / "x.bin").exists() == left
    assert runner.main(["file", "y.bin"]) == 78


def test_results_of_canceled_runs_and_of_other_users_are_not_read(
    run: Callable[..., bytes],
) -> None:
    files = Files({runner.RESULT: run(abs, (-3,))})
    state = RunState(state="canceled", compute_jid=JID, compute_job_serial=7, reason="cancel")
    with pytest.raises(CancelledError):
        of_job(files, "uuuuuuuu", state)
    with pytest.raises(ClientError, match="another user"):
        of_job(files, "vvvvvvvv", state)
