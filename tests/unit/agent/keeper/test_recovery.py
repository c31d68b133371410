"""Recovery after a keeper is killed: its jobs run on, its reaper records their exits, and the next
keeper reports their real outcome, never another process's.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobscribe.runtime import processes
from jobscribe.runtime.execution import keeper_ledger

from ..conftest import Keeper, until

pytestmark = pytest.mark.process

New = Callable[..., Keeper]


@pytest.mark.parametrize(
    ("shell", "code", "number"),
    [
        ("echo last line; exit 7", 7, None),
        ("echo last line; kill -9 $$", None, 9),
        ("echo last line; exit 137", 137, None),
        ("echo last line; kill -TERM $$", None, 15),
    ],
)
def test_a_job_that_ends_without_a_keeper_tells_its_true_end_to_the_next(
    new_keeper: New, shell: str, code: int | None, number: int | None
) -> None:
    keeper = new_keeper()
    token = keeper.started(f"while [ ! -e go ]; do sleep 0.02; done; {shell}")
    keeper.kill()
    (keeper.run_dir(token) / "go").touch()
    until((keeper.evidence(token) / "wait-status.json").exists)
    following = new_keeper()
    known = {e["token"]: e for e in following.hello["executions"]}[str(token)]
    exit_ = following.end_of(token) if known["state"] == "running" else None
    end = known["exit"] if exit_ is None else json.loads(following.text(token, "exit.json"))
    assert (end.get("code"), end.get("signal"), end["source"]) == (code, number, "keeper")
    assert following.text(token) == "last line\n"
    assert end["stdoutBytes"] == 10 and end["endedAt"] >= end["startedAt"]
    assert not (following.evidence(token) / "exit.json.new").exists()


@pytest.mark.parametrize(
    ("shell", "code", "number"),
    [("exit 7", 7, None), ("kill -9 $$", None, 9), ("exit 137", 137, None)],
)
def test_a_job_that_lives_through_its_keepers_death_is_watched_by_the_next(
    new_keeper: New,
    shell: str,
    code: int | None,
    number: int | None,
) -> None:
    keeper = new_keeper()
    token = keeper.launch(f"echo first; while [ ! -e go ]; do sleep 0.02; done; echo last; {shell}")
    before = keeper.next("started", token)
    for _ in range(2):
        keeper.kill()
        keeper = new_keeper()
    known = {e["token"]: e for e in keeper.hello["executions"]}[str(token)]
    assert (known["state"], known["pid"], known["startTicks"], known["startedAt"]) == (
        "running",
        before["pid"],
        before["startTicks"],
        before["startedAt"],
    )
    assert known["elapsed"] >= before["elapsed"]
    (keeper.run_dir(token) / "go").touch()
    exit_ = keeper.end_of(token)
    assert (exit_.code, exit_.signal, exit_.source) == (code, number, "keeper")
    assert keeper.text(token) == "first\nlast\n"


def test_leftovers_of_an_adopted_job_are_found_wherever_they_hang(new_keeper: New) -> None:
    """One leftover has the environment mark but no lock; the other has the lock but no mark."""
    keeper = new_keeper()
    token = keeper.started(
        "( setsid sh -c 'exec 9>&-; exec sleep NAP' & ); ( setsid env -i /bin/sleep NAP & ); while [ ! -e go ]; do sleep 0.02; done; exit 5"
    )
    until(lambda: len(keeper.naps()) == 3)
    keeper.kill()
    following = new_keeper()
    (following.run_dir(token) / "go").touch()
    exit_ = following.end_of(token)
    assert (exit_.code, exit_.source, exit_.survivors_killed) == (5, "keeper", 2)
    assert following.naps() == []


def test_a_reader_of_the_output_is_no_process_of_the_execution(new_keeper: New, who: int) -> None:
    """The lock is the output, open to append. A reader may have it as the same descriptor."""
    keeper = new_keeper()
    token = keeper.started("exec sleep NAP")  # one process, so nothing can outlive it
    with subprocess.Popen(
        ["sh", "-c", f"exec sleep 86400 9<{keeper.evidence(token)}/stdout.log"],
        user=who if who >= 0 else None,
        group=who if who >= 0 else None,
        start_new_session=True,
    ) as reader:
        try:
            until(lambda: str(processes.opened(reader.pid, 9)).endswith("/stdout.log"))
            keeper.kill()
            following = new_keeper()
            following.stop(token, grace=0)
            exit_ = following.end_of(token)
            assert exit_.stop_reason == "cancel" and not exit_.survivors_killed
            assert reader.poll() is None
        finally:
            reader.kill()


def test_leftovers_of_a_job_that_ended_without_a_keeper_are_killed_by_the_next(
    new_keeper: New,
) -> None:
    keeper = new_keeper()
    token = keeper.started("( setsid sleep NAP & ); while [ ! -e go ]; do sleep 0.02; done; exit 5")
    until(lambda: len(keeper.naps()) == 2)
    keeper.kill()
    (keeper.run_dir(token) / "go").touch()
    until(lambda: len(keeper.naps()) == 1)
    following = new_keeper()
    exit_ = following.end_of(token)
    assert (exit_.code, exit_.source, exit_.survivors_killed) == (5, "keeper", 1)
    assert following.naps() == []


def test_an_adopted_job_can_be_stopped(new_keeper: New) -> None:
    keeper = new_keeper()
    gentle = keeper.started("trap 'exit 9' TERM; echo ready; sleep NAP & wait")
    deaf = keeper.started(
        "trap '' TERM; echo ready; ( setsid sleep NAP & ); while :; do sleep NAP; done"
    )
    until(lambda: "ready" in keeper.text(gentle) and "ready" in keeper.text(deaf))
    keeper.kill()
    following = new_keeper()
    following.stop(gentle, grace=20)
    following.stop(deaf, grace=0.2)
    ends = [following.end_of(t) for t in (gentle, deaf)]
    assert [(e.code, e.signal, e.stop_reason) for e in ends] == [
        (9, None, "cancel"),
        (None, 9, "cancel"),
    ]
    assert following.naps() == []


def test_a_stop_that_was_under_way_goes_on(new_keeper: New) -> None:
    keeper = new_keeper()
    token = keeper.started("trap 'echo term' TERM; echo ready; while :; do sleep NAP; done")
    until(lambda: "ready" in keeper.text(token))
    keeper.stop(token, reason="cancel", grace=0.5)
    until(lambda: "term" in keeper.text(token))
    keeper.kill()
    following = new_keeper()
    exit_ = following.end_of(token)
    assert exit_.stop_reason == "cancel" and not exit_.ok
    assert following.naps() == []


def test_the_time_limit_outlives_the_keeper(new_keeper: New) -> None:
    keeper = new_keeper()
    token = keeper.launch("sleep NAP", limit=1.5, grace=0.2)
    started = keeper.next("started", token)
    keeper.kill()
    following = new_keeper()
    exit_ = following.end_of(token)
    assert exit_.stop_reason == "timeLimit"
    assert time.time() - started["startedAt"] >= 1.5


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.002, 0.003, 0.004, 0.006, 0.01, 0.02])
def test_kill_at_any_moment_of_a_start(new_keeper: New, place: Path, delay: float) -> None:
    """The command ran at most once, and a reported exit is the real one."""
    keeper = new_keeper()
    orders, tokens = [], [keeper.token() for _ in range(12)]
    for token in tokens:
        orders.append(
            keeper.order(token, f"echo {token.serial} >>{place}/stamps; exit {token.serial % 100}")
        )
        keeper.send(**orders[-1])
    time.sleep(delay)
    keeper.kill()
    following = new_keeper()
    ends = {e["token"]: e["exit"] for e in following.hello["executions"] if e["state"] == "ended"}
    for token in tokens:
        if str(token) not in ends:
            following.send(**next(o for o in orders if o["name"] == token.name))
            ends[str(token)] = json.loads(json.dumps(following.next("ended", token)["exit"]))
    ran = (place / "stamps").read_text().split() if (place / "stamps").exists() else []
    assert len(ran) == len(set(ran))
    for token in tokens:
        end = ends[str(token)]
        if end["source"] in ("script", "keeper"):
            assert end["code"] == token.serial % 100 and str(token.serial) in ran
        elif end["source"] == "start":
            assert str(token.serial) not in ran, end


def _ledger(keeper: Keeper, *lines: dict[str, object]) -> None:
    with (keeper.folder / "ledger.jsonl").open("a") as f:
        f.writelines(json.dumps(line) + "\n" for line in lines)


def _fabricate(keeper: Keeper, *, earlier: bool = False, **note: object) -> "tuple[object, Path]":
    """Write the evidence that a killed keeper leaves, for the given pid. Return the token and the
    folder. earlier: that of an earlier version, whose jobs ran in a shell.
    """
    token = keeper.token()
    folder = keeper.evidence(token)
    folder.mkdir(parents=True)
    for file in ("script.sh", "stdout.log", "stderr.log", *(("lock", "signal") if earlier else ())):
        (folder / file).touch()
    start = {
        "token": str(token),
        "startedAt": time.time() - 60,
        "startedMono": time.monotonic() - 60,
        "bootId": processes.boot_id(),
        "limit": None,
        "grace": 0.1,
        "runDir": str(keeper.run_dir(token)),
        **note,
    }
    if earlier:
        (keeper.folder / "ledger").mkdir(exist_ok=True)
        (keeper.folder / "ledger" / token.name).write_text(str(token))
        if note:
            (folder / "start.json").write_text(json.dumps(start))
    else:
        _ledger(keeper, {"use": token.name, "token": str(token), "ticks": 0})
        if note:
            _ledger(keeper, {"start": token.name, "direct": True, **start})
    for path in (
        folder,
        *folder.iterdir(),
        *keeper.folder.rglob("ledger*"),
        *keeper.folder.glob("ledger/*"),
    ):
        if keeper.uid >= 0:
            os.chown(path, keeper.uid, keeper.uid)
    return token, folder


def _recorded(folder: Path, pid: int, ticks: int, status: int) -> None:
    """Write the record of a reaper."""
    said = {"pid": pid, "startTicks": ticks, "status": status, "userSecs": 0, "systemSecs": 0}
    file = folder / "wait-status.json"
    file.write_text(json.dumps({**said, "at": time.time(), "mono": time.monotonic()}))
    file.chmod(0o644)


@pytest.fixture
def stranger(who: int) -> "Iterator[subprocess.Popen[bytes]]":
    """Yield an unrelated process of the keeper's user."""
    process = subprocess.Popen(
        ["sleep", "86400"], user=who if who >= 0 else None, start_new_session=True
    )
    yield process
    process.kill()
    process.wait()


def test_another_process_with_the_same_pid_is_neither_taken_for_the_job_nor_signalled(
    new_keeper: New,
    stranger: "subprocess.Popen[bytes]",
) -> None:
    keeper = new_keeper()
    keeper.kill()
    ticks = processes.start_ticks(stranger.pid)
    assert ticks is not None
    token, _ = _fabricate(keeper, pid=stranger.pid, startTicks=ticks - 1)
    following = new_keeper()
    known = {e["token"]: e for e in following.hello["executions"]}[str(token)]
    assert (
        known["state"] == "ended" and known["exit"]["source"] == "lost" and known["exit"]["detail"]
    )
    following.send(do="stop", name=known["name"], token=str(token), reason="cancel", grace=0)
    assert following.next("ended")["exit"]["source"] == "lost"
    assert stranger.poll() is None
    # with the right start time, the same evidence identifies the job
    mine, _ = _fabricate(keeper, pid=stranger.pid, startTicks=ticks)
    following.kill()
    third = new_keeper()
    assert {e["token"]: e["state"] for e in third.hello["executions"]}[str(mine)] == "running"
    third.stop(mine, grace=60)  # type: ignore[arg-type]
    assert stranger.wait(10) == -signal.SIGTERM


def test_what_ran_before_the_machine_was_restarted_is_lost_or_told_by_its_script(
    new_keeper: New, stranger: "subprocess.Popen[bytes]"
) -> None:
    keeper = new_keeper()
    keeper.kill()
    now_there = {"pid": stranger.pid, "startTicks": processes.start_ticks(stranger.pid)}
    lost, _ = _fabricate(keeper, bootId="another", **now_there)
    told, folder = _fabricate(keeper, bootId="another", **now_there)
    _recorded(folder, now_there["pid"], now_there["startTicks"], 6 << 8)
    unnoted = keeper.token()  # the power cut may have taken the lines about its start and its end
    keeper.evidence(unnoted).mkdir()
    if keeper.uid >= 0:
        os.chown(keeper.evidence(unnoted), keeper.uid, keeper.uid)
    use = {"use": unnoted.name, "token": str(unnoted), "ticks": 0, "boot": "another"}
    _ledger(keeper, use)
    earlier, folder = _fabricate(keeper, earlier=True, bootId="another", **now_there)
    (folder / "exit-code").write_text("6\n")
    (folder / "exit-code").chmod(0o644)
    following = new_keeper()
    known = {e["token"]: e["exit"] for e in following.hello["executions"]}
    for token in (lost, unnoted):
        assert (known[str(token)]["source"], known[str(token)]["detail"]) == (
            "lost",
            "the machine was restarted while it ran",
        )
    assert (known[str(told)]["source"], known[str(told)]["code"]) == ("keeper", 6)
    assert (known[str(earlier)]["source"], known[str(earlier)]["code"]) == ("script", 6)
    assert stranger.poll() is None
    assert not (keeper.folder / "ledger").exists(), "its entries are in ledger.jsonl now"
    following.kill()
    assert {e["token"] for e in new_keeper().hello["executions"]} == set(known)


def test_a_job_of_an_earlier_version_ends_under_the_new_keeper(new_keeper: New, who: int) -> None:
    """It runs in a shell, which writes the exit code."""
    keeper = new_keeper()
    keeper.kill()
    token, folder = _fabricate(keeper, earlier=True)
    script = folder / "script.sh"
    script.write_text(
        f"while [ ! -e {folder}/go ]; do sleep 0.02; done; echo 9 >{folder}/exit-code; exit 9"
    )
    shell = subprocess.Popen(
        ["sh", str(script)],
        env={
            "PATH": os.environ["PATH"],
            "JOBSCRIBE_TOKEN": str(token),
            "JOBSCRIBE_TERMINATION_MESSAGE": f"{folder.resolve()}/termination-message",
        },
        user=who if who >= 0 else None,
        group=who if who >= 0 else None,
        start_new_session=True,
    )
    following = new_keeper()
    (known,) = following.hello["executions"]
    assert (known["state"], known["pid"]) == ("running", shell.pid)
    (folder / "go").touch()
    shell.wait()
    exit_ = following.end_of(token)  # type: ignore[arg-type]
    assert (exit_.code, exit_.source) == (9, "script")


@pytest.mark.parametrize("other", ["pid", "ticks"])
def test_the_record_of_another_process_is_not_its_exit(new_keeper: New, other: str) -> None:
    keeper = new_keeper()
    keeper.kill()
    token, folder = _fabricate(keeper, pid=2**22 - 7, startTicks=5)
    _recorded(folder, 2**22 - 7 - (other == "pid"), 5 - (other == "ticks"), 0)
    following = new_keeper()
    assert {e["token"]: e["exit"]["source"] for e in following.hello["executions"]} == {
        str(token): "lost"
    }


def test_a_torn_line_of_the_ledger_is_ignored(new_keeper: New) -> None:
    keeper = new_keeper()
    token = keeper.started("sleep NAP; exit 3")
    done = keeper.launch("exit 4")
    keeper.end_of(done)
    keeper.kill()
    with (keeper.folder / "ledger.jsonl").open("a") as f:
        f.write('{"forget":["' + token.name)
    following = new_keeper()
    assert {e["token"]: e["state"] for e in following.hello["executions"]} == {
        str(token): "running",
        str(done): "ended",
    }
    following.wake()
    assert following.end_of(token).code == 3


def test_a_success_is_told_by_the_next_keeper_and_again_when_its_token_is_offered_again(
    new_keeper: New, place: Path
) -> None:
    """Its exit is in the ledger only. A restored backup offers tokens again that were forgotten."""
    keeper = new_keeper()
    tokens = [keeper.launch(f"echo {n} >>{place}/stamps") for n in (1, 2)]
    ends = [keeper.next("ended", token)["exit"] for token in tokens]
    assert not (keeper.evidence(tokens[0]) / "exit.json").exists()
    keeper.send(do="forget", names=[tokens[0].name])
    until(lambda: tokens[0].name not in keeper_ledger.load(str(keeper.folder)).entries)
    keeper.kill()
    following = new_keeper()
    assert [(e["token"], e["exit"]) for e in following.hello["executions"]] == [
        (str(tokens[1]), ends[1])
    ]
    assert json.loads(following.text(tokens[1], "exit.json")) == ends[1], (
        "keepers of earlier versions read this"
    )
    for token, end in zip(tokens, ends, strict=True):
        following.send(**following.order(token, f"echo again >>{place}/stamps"))
        assert following.next("ended", token)["exit"] == end
    assert sorted((place / "stamps").read_text().split()) == ["1", "2"]


def test_an_end_whose_line_was_torn_or_lost_is_no_success_and_starts_nothing_again(
    new_keeper: New, place: Path
) -> None:
    """As after a power cut: the ledger is not synced."""
    keeper = new_keeper()
    tokens = [keeper.launch(f"echo {n} >>{place}/stamps") for n in (1, 2, 3)]
    for token in tokens:
        keeper.end_of(token)
    keeper.kill()
    ledger = keeper.folder / "ledger.jsonl"
    # the first has no line any more, and of the others no complete line about their end is left
    lines = [line for line in ledger.read_text().splitlines() if tokens[0].name not in line]
    kept = [line for line in lines if not line.startswith('{"end"')]
    torn = next(line for line in lines if line.startswith('{"end"') and tokens[2].name in line)
    ledger.write_text("\n".join([*kept, torn[:-1]]))
    following = new_keeper()
    known = {e["token"]: e["exit"]["source"] for e in following.hello["executions"]}
    assert known == {str(token): "lost" for token in tokens[1:]}
    for token in tokens:
        following.send(**following.order(token, f"echo again >>{place}/stamps"))
        assert following.end_of(token).source == "lost"
    assert sorted((place / "stamps").read_text().split()) == ["1", "2", "3"]


def test_a_half_written_exit_code_is_none(new_keeper: New) -> None:
    keeper = new_keeper()
    keeper.kill()
    token, folder = _fabricate(keeper, earlier=True, pid=2**22 - 7, startTicks=1)
    (folder / "exit-code").write_text("13")
    (folder / "exit-code").chmod(0o644)
    following = new_keeper()
    assert {e["token"]: e["exit"]["source"] for e in following.hello["executions"]} == {
        str(token): "lost"
    }


def _without_starts(keeper: Keeper) -> None:
    """Remove the records of main processes from a ledger, as if the keeper had been killed before
    it wrote them.
    """
    file = keeper.folder / "ledger.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith('{"start"')))


def test_a_start_that_was_never_noted_is_found_by_its_mark(new_keeper: New) -> None:
    keeper = new_keeper()
    token = keeper.launch("sleep NAP; exit 8")
    before = keeper.next("started", token)
    until(keeper.naps)
    keeper.kill()
    _without_starts(keeper)
    following = new_keeper()
    known = {e["token"]: e for e in following.hello["executions"]}[str(token)]
    assert (known["state"], known["pid"], known["startTicks"]) == (
        "running",
        before["pid"],
        before["startTicks"],
    )
    assert abs(known["startedAt"] - before["startedAt"]) < 1
    following.wake()
    assert (
        following.end_of(token).code,
        keeper_ledger.load(str(following.folder)).entries[token.name].main,
    ) == (8, (before["pid"], before["startTicks"]))


@pytest.mark.parametrize("shell", ["exit 8", "sleep 0.3; exit 8"])
def test_a_start_that_was_never_noted_tells_its_exit(
    new_keeper: New, place: Path, shell: str
) -> None:
    """The keeper dies between spawn and record; the job ends before or after the next one starts."""
    keeper = new_keeper(env={"JOBSCRIBE_CRASHPOINT": f"keeper.spawned:1:{place}/struck"})
    token = keeper.launch(shell)
    keeper.process.wait(60)
    keeper.kill()
    following = new_keeper()
    known = {e["token"]: e for e in following.hello["executions"]}[str(token)]
    code = known["exit"]["code"] if known["exit"] else following.end_of(token).code
    assert code == 8


def test_a_start_that_was_never_noted_and_left_nothing_is_lost_unless_it_never_was(
    new_keeper: New,
) -> None:
    keeper = new_keeper()
    keeper.kill()
    spawned, _ = _fabricate(keeper)
    not_spawned, folder = _fabricate(keeper)
    (folder / "stderr.log").unlink()
    entry_only = keeper.token()
    _ledger(keeper, {"use": entry_only.name, "token": str(entry_only), "ticks": 0})
    following = new_keeper()
    known = {e["token"]: e["exit"] for e in following.hello["executions"]}
    assert set(known) == {str(spawned), str(not_spawned)}
    assert (
        known[str(spawned)]["source"] == "lost"
        and "no process of it is left" in known[str(spawned)]["detail"]
    )
    assert known[str(not_spawned)]["source"] == "start"
    # the third execution never started, so it may start once
    following.send(**following.order(entry_only, "exit 2"))
    assert following.end_of(entry_only).code == 2


def test_a_job_that_was_killed_while_no_keeper_was_there_tells_the_signal(new_keeper: New) -> None:
    keeper = new_keeper()
    token = keeper.launch("sleep NAP")
    pid = keeper.next("started", token)["pid"]
    until(keeper.naps)
    keeper.kill()
    os.kill(pid, signal.SIGKILL)
    following = new_keeper()
    exit_ = following.end_of(token)
    assert (exit_.source, exit_.code, exit_.signal) == ("keeper", None, signal.SIGKILL)
    assert following.naps() == []


def test_the_next_keeper_waits_for_the_record_of_a_stopped_reaper(new_keeper: New) -> None:
    keeper = new_keeper()
    token = keeper.launch("while [ ! -e go ]; do sleep 0.02; done; exit 6")
    pid = keeper.next("started", token)["pid"]
    os.kill(keeper.process.reaper.pid, signal.SIGSTOP)
    os.kill(keeper.process.pid, signal.SIGKILL)
    until(lambda: processes.find(pid).parent == keeper.process.reaper.pid)  # type: ignore[union-attr]
    (keeper.run_dir(token) / "go").touch()
    until(lambda: processes.find(pid).over)  # type: ignore[union-attr]
    following = new_keeper()
    assert following.end_of(token).code == 6


def test_an_exit_after_keeper_and_reaper_were_killed_is_lost_and_says_why(new_keeper: New) -> None:
    keeper = new_keeper()
    token = keeper.launch("sleep NAP")
    pid = keeper.next("started", token)["pid"]
    until(keeper.naps)
    keeper.process.reaper.kill()
    keeper.kill()
    os.kill(pid, signal.SIGKILL)
    until(lambda: processes.find(pid) is None or processes.find(pid).over)  # type: ignore[union-attr]
    following = new_keeper()
    exit_ = following.end_of(token)
    assert (exit_.source, exit_.code, exit_.signal) == ("lost", None, None)
    assert exit_.detail is not None and "neither a keeper nor a reaper" in exit_.detail
    assert following.naps() == []


def test_a_keeper_that_is_killed_again_and_again_loses_no_job(new_keeper: New) -> None:
    keeper = new_keeper()
    tokens = [
        keeper.started(f"while [ ! -e go ]; do sleep 0.05; done; echo end; exit {n}")
        for n in range(1, 9)
    ]
    for _ in range(4):
        keeper.kill()
        keeper = new_keeper()
        assert {e["token"] for e in keeper.hello["executions"]} == {str(t) for t in tokens}
    for token in tokens:
        (keeper.run_dir(token) / "go").touch()
    assert [keeper.end_of(t).code for t in tokens] == list(range(1, 9))
    assert {keeper.text(t) for t in tokens} == {"end\n"}
