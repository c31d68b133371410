"""The keeper process: it starts each execution once, waits for it, and reports its exit. Agents may
end and be replaced.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest

import jobscribe
from jobscribe.agent.keeper import process as keeper_module
from jobscribe.protocol.jobs.exit_info import ExitInfo
from jobscribe.runtime import processes
from jobscribe.runtime.execution import keeper_ledger

from ..conftest import Keeper, until

pytestmark = pytest.mark.process
#: The users of its keepers, also without SOAK=1: what they may do differs.
USERS = ("same user", "ordinary user")

#: Signals 32 and 33: the C library reserves them, so no program can set them.
_OF_THE_C_LIBRARY = 0b11 << 31


def test_a_command_runs_and_its_exit_output_and_evidence_are_kept(keeper: Keeper) -> None:
    token = keeper.launch("echo out; echo err >&2; exit 7")
    started = keeper.next("started", token)
    exit_ = keeper.end_of(token)
    assert (exit_.code, exit_.signal, exit_.source, exit_.survivors_killed) == (
        7,
        None,
        "keeper",
        0,
    )
    assert keeper.text(token) == "out\n" and keeper.text(token, "stderr.log") == "err\n"
    assert (exit_.stdout_bytes, exit_.stderr_bytes, exit_.last_lines) == (4, 4, "err")
    assert (
        started["state"] == "running"
        and started["pid"] > 0
        and started["startTicks"] > 0
        and started["exit"] is None
    )
    assert (
        exit_.started_at is not None
        and exit_.ended_at is not None
        and exit_.started_at <= exit_.ended_at <= time.time()
    )
    assert exit_.user_secs is not None and exit_.max_rss_bytes is None, (
        "a small shell's peak cannot be told from its keeper's"
    )
    final = msgspec.json.decode(keeper.text(token, "exit.json"), type=ExitInfo)
    assert final == exit_
    entry = keeper_ledger.load(str(keeper.folder)).entries[token.name]
    assert (entry.token, entry.main) == (str(token), (started["pid"], started["startTicks"]))
    assert not (keeper.evidence(token) / "exit-code").exists(), "no shell ran"
    assert (keeper.evidence(token).stat().st_mode & 0o777) == 0o700
    for link in (".jobscribe", ".jobscribe/latest"):
        assert (keeper.run_dir(token) / link).resolve() == keeper.evidence(token).resolve()


@pytest.mark.parametrize(
    ("shell", "code", "number"),
    [
        ("exit 0", 0, None),
        ("exit 137", 137, None),
        ("kill -9 $$", None, 9),
        ("kill -TERM $$", None, 15),
        ("exit 143", 143, None),
        ("kill -SEGV $$", None, 11),
        ("exit 139", 139, None),
        ("exit 255", 255, None),
        ("exit 130", 130, None),
        ("exit 141", 141, None),
        ("kill -HUP $$", None, 1),
        ("kill -INT 0", None, 2),
        ("trap 'exit 137' INT; kill -INT 0; sleep 9", 137, None),
        ("kill -INT $$", None, 2),
        ("kill -PIPE $$", None, 13),
    ],
)
def test_an_exit_with_128_and_more_is_told_from_a_signal(
    keeper: Keeper, shell: str, code: int | None, number: int | None
) -> None:
    exit_ = keeper.run(shell)
    assert (exit_.code, exit_.signal, exit_.source) == (code, number, "keeper")


def test_the_shell_itself_killed_by_a_signal_is_that_signal_and_its_command_does_not_live_on(
    keeper: Keeper,
) -> None:
    token = keeper.launch("sleep NAP")
    pid = keeper.next("started", token)["pid"]
    until(keeper.sleepers)
    os.kill(pid, 9)
    exit_ = keeper.end_of(token)
    assert (exit_.signal, exit_.source) == (9, "keeper")
    assert exit_.survivors_killed >= 1 and keeper.naps() == []


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("no-such-program", "x"), 127, "no-such-program"),
        (("/etc/passwd",), 126, "/etc/passwd"),
        (("/no/such/program",), 127, "/no/such/program"),
    ],
)
def test_a_missing_or_not_executable_program_is_126_or_127_and_stderr_says_which(
    keeper: Keeper,
    command: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    exit_ = keeper.run(command=command)
    assert exit_.code == code and exit_.last_lines is not None and said in exit_.last_lines


@pytest.mark.parametrize("found_on_path", [False, True])
@pytest.mark.parametrize(
    ("content", "code", "said"),
    [(b"echo $1 >&2; exit 5\n", 5, "given"), (b"\x7fELF\0nonsense\n", 126, "Exec format error")],
)
def test_a_file_without_interpreter_is_a_script_unless_it_is_binary(
    keeper: Keeper, content: bytes, code: int, said: str, found_on_path: bool
) -> None:
    program = keeper.place / "programs" / "odd-program"
    program.parent.mkdir(mode=0o755)
    program.write_bytes(content)
    program.chmod(0o755)
    name = program.name if found_on_path else str(program)
    path = f"{program.parent}:/usr/bin:/bin"
    exit_ = keeper.run(command=(name, "given"), env={"PATH": path})
    assert exit_.code == code and said in str(exit_.last_lines)


def test_a_core_dump_is_told(keeper: Keeper) -> None:
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern.startswith("|") or "/" in pattern:
        pytest.skip(
            f"core dumps of this machine go elsewhere ({pattern}), so whether one was made depends on that"
        )
    assert keeper.run("kill -SEGV $$", core=1 << 30).core_dumped
    assert not keeper.run("kill -SEGV $$", core=0).core_dumped


def test_the_agent_gets_its_configuration_and_what_is_known(keeper: Keeper) -> None:
    assert keeper.hello["agent"] == {"token": "s3cret-of-the-agent"}
    assert keeper.hello["executions"] == []
    assert keeper.hello["keeperPid"] == keeper.process.pid
    assert keeper.hello["folder"] == str(keeper.folder)
    said = json.loads((keeper.folder / "keeper.json").read_text())
    assert processes.alive(said["pid"], said["startTicks"]) and said["pid"] == keeper.process.pid
    assert said["bootId"] == processes.boot_id()


def test_an_agent_that_is_killed_is_replaced_and_its_jobs_run_on(keeper: Keeper) -> None:
    token = keeper.launch("sleep NAP; exit 3")
    before = keeper.next("started", token)
    done = keeper.launch("exit 4")
    keeper.end_of(done)
    for _ in range(2):
        keeper.kill_agent()
        keeper.accept()
    known = {e["token"]: e for e in keeper.hello["executions"]}
    assert known[str(token)]["state"] == "running" and known[str(token)]["pid"] == before["pid"]
    assert processes.alive(before["pid"], before["startTicks"])
    assert known[str(done)]["exit"]["code"] == 4
    keeper.wake()
    assert keeper.end_of(token).code == 3


@pytest.mark.parametrize("deaf", [False, True])
def test_what_the_agent_left_behind_is_asked_to_end_and_then_killed(
    new_keeper: Callable[..., Keeper], place: Path, deaf: bool
) -> None:
    """The relay plays the agent. The process that it leaves plays a login profile in the middle of
    an operation.
    """
    lock = place / "locks"
    lock.mkdir(mode=0o777)
    lock.chmod(0o777)
    goodbye = "" if deaf else f"sleep 0.1 && rm {lock}/$$; exit"
    keeper = new_keeper(
        env={
            "JOBSCRIBE_TEST_LEAVES": f"trap '{goodbye}' TERM; : >{lock}/$$; n=0; while [ $((n += 1)) -lt 3000 ]; do sleep 0.02; done"
        }
    )
    token = keeper.started("exec sleep NAP")  # one process: the job leaves no survivor of its own
    (held,) = until(lambda: os.listdir(lock))
    left = psutil.Process(int(held))
    agent = psutil.Process(keeper.agent_pid)
    assert os.getsid(agent.pid) == agent.pid == os.getsid(left.pid)
    keeper.kill_agent()
    keeper.accept()
    assert not agent.is_running() and not left.is_running()
    assert (lock / held).exists() == deaf
    keeper.stop(token, grace=0)
    assert keeper.end_of(token).survivors_killed == 0


def test_what_is_forgotten_is_not_told_to_the_next_agent_and_its_evidence_stays(
    keeper: Keeper,
) -> None:
    first, second = keeper.launch("exit 1"), keeper.launch("exit 2")
    keeper.end_of(first), keeper.end_of(second)
    keeper.send(do="forget", names=[first.name, "never-heard-of"])
    until(lambda: first.name not in keeper_ledger.load(str(keeper.folder)).entries)
    keeper.kill_agent()
    keeper.accept()
    assert [e["token"] for e in keeper.hello["executions"]] == [str(second)]
    assert (keeper.evidence(first) / "exit.json").exists()


def test_a_running_execution_is_not_forgotten(keeper: Keeper) -> None:
    token = keeper.started("sleep NAP")
    keeper.send(do="forget", names=[token.name])
    keeper.run("exit 0")
    keeper.kill_agent()
    keeper.accept()
    assert str(token) in {e["token"] for e in keeper.hello["executions"]}
    keeper.stop(token, grace=0)
    assert keeper.end_of(token).stop_reason == "cancel"


def test_orders_that_are_none_are_said_and_change_nothing(keeper: Keeper) -> None:
    for line in (
        b"\xff\xfe{",
        b"[]",
        b'{"do": "dance"}',
        b'{"do": "start", "name": "../../etc"}',
        b'{"do": "start"}',
        b'{"do": "stop", "name": "x"}',
        b'{"do": "stop", "name": "x", "reason": "cancel", "grace": "soon"}',
        b'{"do": "forget"}',
    ):
        keeper.agent.sendall(line + b"\n")
    assert keeper.run("exit 5").code == 5
    assert list(keeper_ledger.load(str(keeper.folder)).entries) == [
        p.name for p in (keeper.folder / "run").iterdir()
    ]
    assert len(list((keeper.folder / "run").iterdir())) == 1
    assert "'dance'" in keeper.log()


def test_the_keeper_ends_with_its_jobs_when_it_is_told_to(keeper: Keeper) -> None:
    token = keeper.started("trap '' TERM; sleep NAP & wait; sleep NAP")
    keeper.send(do="quit", stopJobs=True, grace=0.2)
    exit_ = keeper.end_of(token)
    assert exit_.stop_reason == "shutdown"
    assert keeper.process.wait(60) == 0
    assert keeper.naps() == []


def test_sigterm_ends_the_keeper_with_its_jobs(keeper: Keeper) -> None:
    token = keeper.started("sleep NAP")
    keeper.process.terminate()
    exit_ = keeper.end_of(token)
    assert (exit_.stop_reason, exit_.signal) == ("shutdown", 15)
    assert keeper.process.wait(60) == 0


def test_the_keeper_ends_without_its_jobs_when_it_is_told_to(new_keeper: "type[Keeper]") -> None:
    keeper = new_keeper()
    token = keeper.started("sleep NAP; exit 6")
    keeper.send(do="quit", stopJobs=False, grace=0.2)
    assert keeper.process.wait(60) == 0
    assert keeper.naps()
    following = new_keeper()
    assert [(e["token"], e["state"]) for e in following.hello["executions"]] == [
        (str(token), "running")
    ]
    following.wake()
    assert following.end_of(token).code == 6


def test_a_second_keeper_on_the_same_folder_leaves(keeper: Keeper) -> None:
    path = str(Path(jobscribe.__file__).parent / ".types")
    token = keeper.started("sleep NAP")
    second = subprocess.run(
        [
            sys.executable,
            "-m",
            "jobscribe.agent.keeper",
            "--root",
            str(keeper.place),
            "--folder",
            str(keeper.folder),
        ],
        input=json.dumps({"agent": {}}),
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
        env={"PYTHONPATH": path},
    )
    assert second.returncode == keeper_module.ANOTHER_KEEPER == 3
    assert "another keeper" in second.stderr
    assert json.loads((keeper.folder / "keeper.json").read_text())["pid"] == keeper.process.pid
    keeper.stop(token, grace=0)
    keeper.end_of(token)


def test_the_lock_of_a_dead_keeper_is_free_though_agent_and_jobs_are_alive(
    new_keeper: "type[Keeper]",
) -> None:
    keeper = new_keeper()
    token = keeper.started("sleep NAP")
    os.kill(keeper.agent_pid, 19)  # the frozen agent does not notice the keeper's end
    try:
        keeper.process.kill()
        keeper.process.wait()
        following = new_keeper()
        assert [e["token"] for e in following.hello["executions"]] == [str(token)]
    finally:
        os.kill(keeper.agent_pid, 9)


def test_no_descriptors_left_fails_a_start_by_name_and_harms_no_running_job(keeper: Keeper) -> None:
    token = keeper.started("sleep NAP; exit 3")
    until(keeper.naps)
    keeper.process.send_signal(signal.SIGUSR1)
    refused = keeper.run("exit 0")
    assert (
        refused.source == "start"
        and refused.detail is not None
        and "Too many open files" in refused.detail
    )
    keeper.wake()
    until(lambda: "Too many open files" in keeper.log())
    keeper.process.send_signal(signal.SIGUSR1)
    assert keeper.end_of(token).code == 3
    assert keeper.run("exit 0").code == 0


def test_an_agent_that_does_not_read_costs_no_memory_and_gets_the_truth_later(
    keeper: Keeper,
) -> None:
    os.kill(keeper.agent_pid, 19)
    orders = [keeper.order(keeper.token(), "exit 0") for _ in range(3)]
    for order in orders:
        keeper.send(**order)
    os.kill(keeper.agent_pid, 18)
    for order in orders:
        keeper.next("started")
        assert keeper.next("ended")["exit"]["code"] == 0
        assert order["name"] in os.listdir(keeper.folder / "run")


def test_jobs_have_nothing_of_the_keepers(keeper: Keeper) -> None:
    token = keeper.token()
    keeper.send(
        **keeper.order(
            token,
            "tr '\\0' '\\n' </proc/self/environ; echo; ls -l /proc/$$/fd; grep -E 'Sig(Ign|Blk)' /proc/self/status",
        )
    )
    assert keeper.end_of(token).code == 0
    text = keeper.text(token)
    assert "s3cret" not in text and "PYTHONPATH" not in text
    ignored, blocked = (
        int(line.split()[1], 16)
        for line in sorted(text.splitlines(), reverse=True)
        if line.startswith("Sig")
    )
    assert blocked == 0 and ignored & ~_OF_THE_C_LIBRARY == 0
    opened = {line.split(" -> ")[1] for line in text.splitlines() if " -> " in line}
    folder = str(keeper.evidence(token).resolve())
    assert opened == {
        "/dev/null",
        f"{folder}/stdout.log",
        f"{folder}/stderr.log",
    }
    assert " 9 -> " in text, "the lock"


def test_the_keeper_shows_no_secret_and_lets_no_other_process_of_its_user_look_inside(
    keeper: Keeper, who: int
) -> None:
    pid = keeper.process.pid
    assert b"s3cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert (
        os.stat(f"/proc/{pid}/mem").st_uid == 0
    )  # root owns it, because the process is not dumpable
    token = keeper.launch(
        f"cat /proc/{pid}/environ; cat /proc/{pid}/maps | head -1; ls /proc/{pid}/fd"
    )
    exit_ = keeper.end_of(token)
    if who >= 0:
        assert exit_.code != 0 and keeper.text(token) == ""
        assert keeper.text(token, "stderr.log").count("Permission denied") >= 2
    for path in keeper.folder.rglob("*"):
        if path.is_file():
            assert b"s3cret" not in path.read_bytes(), path
