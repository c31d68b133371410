"""Slurm commands: their time limit, and their environment from the login profile, the cluster's
configuration and the agent's session.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from jobscribe.agent.batch import command_runner
from jobscribe.agent.batch.command_runner import NO_ANSWER, Commands, environment
from jobscribe.agent.keeper import process
from jobscribe.agent.login_node import keeper_control

pytestmark = pytest.mark.process


def test_the_session_says_where_slurm_is_if_no_profile_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """sshd (SetEnv) and PAM may set the cluster's variables, which a clean login shell does not
    have.
    """
    monkeypatch.setenv("SLURM_CONF", "/session/slurm.conf")
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    assert environment({"PATH": "/bin"}, {})["SLURM_CONF"] == "/session/slurm.conf"
    assert (
        environment({"SLURM_CONF": "/profile/slurm.conf"}, {})["SLURM_CONF"]
        == "/profile/slurm.conf"
    )
    assert (
        environment({"SLURM_CONF": "/profile/slurm.conf"}, {"SLURM_CONF": "/told/slurm.conf"})[
            "SLURM_CONF"
        ]
        == "/told/slurm.conf"
    )
    assert "SQUEUE_FORMAT" not in environment({"SQUEUE_FORMAT": "%j"}, {})


def test_what_a_keeper_is_given_of_the_session_it_gives_its_agent() -> None:
    assert set(keeper_control._PASSED_ON) <= set(process._PASSED_ON)


@pytest.mark.parametrize(
    "argv",
    [
        ("env", "-u", "SQUEUE_FORMAT", "LC_ALL=C", "sleep", "20"),
        ("env", "sleep", "20"),
        ("sleep", "20"),
    ],
)
async def test_who_does_not_answer_is_named(argv: tuple[str, ...]) -> None:
    ran = await Commands(lambda: os.environ)(argv, "", 0.1)
    assert (ran.code, ran.err) == (NO_ANSWER, "sleep did not answer within 0.1 s")


async def test_who_keeps_a_commands_pipes_holds_nobody_up(tmp_path: Path) -> None:
    """A daemon that leaves the process group keeps the pipes open, but the command still returns in
    time.
    """
    left = tmp_path / "left"
    began = time.monotonic()
    try:
        ran = await Commands(lambda: os.environ)(
            ("sh", "-c", f"setsid sh -c 'echo $$ >{left}; exec sleep 60' & sleep 60"), "", 0.5
        )
        took = time.monotonic() - began
    finally:
        os.kill(int(left.read_text()), signal.SIGKILL)
    assert ran.code == NO_ANSWER and took < 5 * (0.5 + command_runner._GONE_SECS), took
