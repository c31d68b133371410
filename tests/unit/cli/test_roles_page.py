"""docs/roles.md covers every variable and every reason to wait, states the real limits, and
contains valid descriptions.
"""

import re
from pathlib import Path

import pytest

import jobscribe
from jobscribe.db.events.job_fold import ATTEMPTS_WHOLE
from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.jobs import roles
from jobscribe.protocol.jobs.roles import Port, TaskPlace, TaskRole
from jobscribe.protocol.launch import task_environment
from jobscribe.schema.jobs.description import parse_description
from jobscribe.schema.text import reader

TEXT = (Path(jobscribe.__file__).parent / "docs" / "roles.md").read_text(encoding="utf-8")


def variables() -> set[str]:
    """Return the variables of a task, with R, i and L in place of role names, indices and labels."""
    role = TaskRole(name="R", command=("x",), ports=(Port(label="L"),))
    place = TaskPlace(
        role="R", index=0, host="h", address="a", ports={"L": (1,), "http": (2,), "ssh": (3,)}
    )
    spec = RunSpec(uid="user1234", simulation_id="sim12345", roles=(role,))
    both = {
        **task_environment.shared(spec, "user1234-sim12345-x", 1, 1, (place,)).env,
        **task_environment.own(spec, "user1234-sim12345-x", 1, 1, place),
    }
    generic = (
        re.sub(r"R_0", "R_i", re.sub(r"_(http|ssh)(?=_PORT|$)", "_L", name)) for name in both
    )
    return {*generic, "PAI_WORK_DIR"}


@pytest.mark.parametrize("name", sorted(variables()))
def test_every_variable_is_explained(name: str) -> None:
    assert f"`{name}`" in TEXT


def test_no_variable_is_explained_that_there_is_not() -> None:
    named = set(re.findall(r"`((?:PAI|CUDA|FRAMEWORK|APP)_[A-Za-z_]+)`", TEXT))
    assert named <= variables(), named - variables()


def test_every_reason_to_wait_is_explained() -> None:
    core = Path(jobscribe.__file__).parent / "supervisor" / "core" / "status" / "run_status.py"
    words = set(
        re.findall(
            r'(?:return|waits, sentence =) \(?\s*"([a-z_]+)",', core.read_text(encoding="utf-8")
        )
    )
    assert {"debug_hold", "retry_wait", "op_slot", "agent"} <= words, (
        "they are found where they are made"
    )
    assert [w for w in sorted({*words, "resources", "ports"}) if f"`{w}`" not in TEXT] == []


def test_the_limits_are_the_real_ones() -> None:
    for what, most in (
        ("roles of a run", roles.MAX_ROLES),
        ("tasks of all roles together", roles.MAX_TASKS),
    ):
        assert f"| {what} | {most:,} |" in TEXT
    assert f"with `http` and `ssh` of each | {roles.MAX_PORTS:,} |" in TEXT
    assert f"latest {ATTEMPTS_WHOLE} attempts" in TEXT


def test_every_description_is_right(tmp_path: Path) -> None:
    found = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(found) >= 5
    for n, text in enumerate(found):
        path = tmp_path / f"{n}.yaml"
        path.write_text(text)
        assert parse_description(reader.read(str(path)).data).jobs[0].name
