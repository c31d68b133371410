"""The one-line summary of a run's command in lists."""

import pytest
from in_memory_supervisor import UID, InMemorySupervisor

from jobscribe.protocol.api.requests import RunSimulation, RunSpec
from jobscribe.protocol.jobs.roles import TaskRole
from jobscribe.supervisor.runs.search import command_summaries
from jobscribe.supervisor.runs.search.command_summaries import CHARS, CommandSummaries, summary


def spec(*command: str, **fields: object) -> RunSpec:
    return RunSpec(uid=UID, simulation_id="sim00001", command=command, **fields)  # type: ignore[arg-type]


def test_a_command_is_quoted_on_one_line_and_shortened() -> None:
    assert summary(spec("sh", "-c", "echo a\n  echo b", sim_name="mine")) == (
        "sh -c 'echo a echo b'",
        "mine",
        None,
    )
    long = summary(spec("x" * 100_000, *["y"] * 9000)).command
    assert long is not None and len(long) == CHARS and long.endswith("x ...")


def test_of_roles_the_first_one_is_told_and_of_apps_nothing() -> None:
    one, two = TaskRole(name="a", command=("serve",)), TaskRole(name="b", command=("work",))
    assert summary(RunSpec(uid=UID, simulation_id="sim00001", roles=(one,))).command == "serve"
    assert (
        summary(RunSpec(uid=UID, simulation_id="sim00001", roles=(one, two))).command == "serve ..."
    )
    assert summary(RunSpec(uid=UID, simulation_id="sim00001", simulation_type="heat", data={})) == (
        None,
        None,
        None,
    )


async def test_summaries_are_read_once_and_not_kept_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_summaries, "KEPT", 2)
    in_memory = InMemorySupervisor()
    for n in range(3):
        await in_memory.desk.submit(
            RunSimulation(
                req_id=f"request{n:08}",
                run=RunSpec(uid=UID, simulation_id=f"sim0000{n}", command=("echo", str(n))),
            )
        )
    kept, rows = CommandSummaries(in_memory.store), in_memory.store.jobs()
    assert [kept.get(row).command for row in rows] == ["echo 2", "echo 1", "echo 0"]
    assert len(kept) == 2
    monkeypatch.setattr(in_memory.store, "read", lambda *_: pytest.fail("it was read already"))
    assert kept.get(rows[-1]).command == "echo 0"
