"""The stored result of a sequential run: the file's unchanged content, or a reason why it cannot be
returned.
"""

from pathlib import Path

import pytest

from jobscribe.agent.session.state_machine import Fetch, Session, StartCall
from jobscribe.agent.workers.call_handler import log_line, message, stored_result
from jobscribe.protocol.wire.messages import Call, CallReply, OpError

WRITTEN = b'{"odd":   "spaces\\u00e9", "n": 1e3}\n'


def call(run_dir: Path | None, limit: int = 1000, job_cmd: str = "sequential_result") -> Call:
    return Call(
        op_id="o" * 32,
        job_cmd=job_cmd,
        simulation_type="removed",
        compute_model="m",
        run_dir=None if run_dir is None else str(run_dir),  # type: ignore[arg-type]
        lib_dir="/lib",
        deadline_secs=1.0,
        reply_limit=limit,
    )


def refused(run_dir: Path | None, limit: int = 1000) -> tuple[str | None, str]:
    outcome = stored_result(call(run_dir, limit))
    assert outcome.reply == b""
    return outcome.code, outcome.sentence


def test_it_is_passed_on_byte_for_byte_and_its_app_is_not_needed(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_bytes(WRITTEN)
    outcome = stored_result(call(tmp_path, len(WRITTEN)))
    assert message(call(tmp_path), outcome) == CallReply(op_id="o" * 32, reply=WRITTEN)


def test_one_that_is_too_large_is_refused_with_both_sizes(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_bytes(WRITTEN)
    code, sentence = refused(tmp_path, len(WRITTEN) - 1)
    assert (
        code == "replyTooLarge"
        and str(len(WRITTEN)) in sentence
        and str(len(WRITTEN) - 1) in sentence
    )


def test_one_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    assert refused(tmp_path / "gone") == ("notFound", "the run directory is gone")
    assert refused(tmp_path)[0] == "notFound"
    assert refused(None)[0] == "badRequest"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "out.json").symlink_to("/etc/passwd")
    code, sentence = refused(tmp_path)
    assert code == "notFound" and "link" in sentence


def test_a_refusal_is_sent_with_its_code(tmp_path: Path) -> None:
    said = message(call(tmp_path), stored_result(call(tmp_path / "gone")))
    assert said == OpError(op_id="o" * 32, code="notFound", error="the run directory is gone")


@pytest.mark.parametrize(
    ("job_cmd", "output"), [("sequential_result", Fetch), ("get_simulation_frame", StartCall)]
)
def test_only_a_result_needs_no_process(tmp_path: Path, job_cmd: str, output: type) -> None:
    asked = call(tmp_path, job_cmd=job_cmd)
    assert Session().received(asked, 0.0) == [output(asked)]


def test_the_log_says_what_became_of_it(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_bytes(WRITTEN)
    form, *values = log_line(call(tmp_path), stored_result(call(tmp_path)), 0.5)
    assert form.format(*values) == (
        f"opName=analysis o=oooooo jobCmd=sequential_result app=removed method=None runDir={tmp_path} seconds=0.5000 outcome=ok bytes={len(WRITTEN)}"
    )
