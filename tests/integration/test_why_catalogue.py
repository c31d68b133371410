"""Real failures on this machine, and the output of `job why` for each: cause, confidence, and
advice.

All failures that do not disturb each other are submitted at once. Failures in containers are in
tests/docker, failures on a cluster in tests/slurm.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import explanation_quality
import psutil
import pytest
from supervisor_process import PYTHON_PATH, UID, SupervisorProcess, jid_of, shell, spec, until

SECS = 60.0
ROOT = os.geteuid() == 0
SIGNALED = "import os, signal; os.kill(os.getpid(), signal.{})"
BUS = """
import mmap, os
f = open("short", "w+b"); f.truncate(8192)
m = mmap.mmap(f.fileno(), 8192); f.truncate(0); m[4096] = 1
"""
PIPE = "import os, signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL); r, w = os.pipe(); os.close(r); os.write(w, b'x')"


SURVIVED = (
    'echo "warning: cache: No space left on device, going on without" >&2; for i in 1 2 3 4 5; do echo "step $i ok" >&2; done; '
    'echo "Error: input file missing: mesh.inp" >&2; exit 1'
)


class Case(NamedTuple):
    """One failure. words: texts that the command output must contain. run: the run that fails."""

    cause: str
    confidence: str
    run: dict[str, Any]
    words: tuple[str, ...] = ()
    state: str = "error"


def python(text: str, **fields: Any) -> dict[str, Any]:
    return spec([sys.executable, "-c", text], **fields)


def gang(name: str, command: str, **fields: Any) -> dict[str, Any]:
    role = {"name": name, "command": ["/bin/sh", "-c", command], **fields.pop("role", {})}
    run = spec([], roles=[role], jobRunMode="parallel", **fields)
    del run["command"]
    return run


def by_themselves(place: Path) -> dict[str, Case]:
    """Return the failures that need no outside action: runs that end by themselves or at a limit.
    place: a folder for their files.
    """
    wrong = place / "wrong"
    wrong.write_bytes(b"\x7fELF\x02\x01\x01" + b"\0" * 9 + b"\x02\0\xf3\0" + b"\0" * 100)
    wrong.chmod(0o755)
    plain = place / "plain"
    plain.write_text("echo never\n")
    true = shutil.which("true")
    assert true is not None
    unlinked = place / "unlinked"
    unlinked.write_bytes(Path(true).resolve().read_bytes().replace(b"libc.so.6\0", b"libZ.so.6\0"))
    unlinked.chmod(0o755)
    return {
        "exit": Case(
            "exit", "certain", shell("echo the last word; exit 3"), ("exit code 3", "the last word")
        ),
        "kill -9": Case(
            "killed", "unknown", shell("kill -9 $$"), ("SIGKILL", "not sent by jobscribe")
        ),
        "exit 137": Case("exit", "certain", python("raise SystemExit(137)"), ("exit code 137",)),
        "child killed": Case(
            "killed",
            "unknown",
            spec(["/bin/bash", "-c", "bash -c 'kill -9 $$'; exit $?"]),
            ("137",),
        ),
        "terminated": Case(
            "terminated", "unknown", python(SIGNALED.format("SIGTERM")), ("SIGTERM",)
        ),
        "hangup": Case("hangup", "certain", python(SIGNALED.format("SIGHUP")), ("SIGHUP",)),
        "interrupted": Case(
            "interrupted", "certain", shell("kill -INT 0; sleep 9"), ("SIGINT", "if so")
        ),
        "interrupted alone": Case(
            "interrupted",
            "certain",
            spec(["/usr/bin/perl", "-e", "kill 2, $$; sleep 9"]),
            ("SIGINT", "if so"),
        ),
        "interrupted Python": Case(
            "interrupted",
            "certain",
            python("import os; os.kill(os.getpid(), 2)"),
            ("SIGINT", "KeyboardInterrupt"),
        ),
        "exit 130": Case(
            "exit", "possible", shell("exit 130"), ("130", "a program can also return it itself")
        ),
        "exit 141": Case("exit", "possible", shell("exit 141"), ("141", "SIGPIPE")),
        "segmentation fault": Case(
            "crash",
            "certain",
            python("import ctypes; ctypes.string_at(0)"),
            ("SIGSEGV", "string_at"),
        ),
        "abort": Case(
            "crash", "certain", python("import os; os.abort()", coreBytes=2**30), ("SIGABRT",)
        ),
        "bus": Case("crash", "certain", python(BUS), ("SIGBUS",)),
        "arithmetic": Case("crash", "certain", python(SIGNALED.format("SIGFPE")), ("SIGFPE",)),
        "pipe": Case(
            "brokenPipe",
            "likely",
            shell("echo 'tee: write error: Broken pipe' >&2; exit 141"),
            ("pipe", "(likely)"),
        ),
        "pipe alone": Case("brokenPipe", "certain", python(PIPE), ("SIGPIPE",)),
        "hard processor time": Case(
            "cpuLimit",
            "likely",
            shell("ulimit -t 1; while :; do :; done"),
            ("ulimit -t 1", "caused by the job", "a retry does not help"),
        ),
        "file size of a child": Case(
            "fileSizeLimit",
            "certain",
            shell("ulimit -f 1; yes > f; exit $?"),
            ("ulimit -f 1", "caused by the job"),
        ),
        "timeout": Case(
            "commandTimeout",
            "likely",
            shell("timeout 0.2 sleep 9"),
            ("124", "'timeout'", "the time limit of the run"),
        ),
        "ulimit -v": Case(
            "memoryRefused",
            "likely",
            shell("ulimit -v 200000; python3 -c 'bytearray(10**9)'"),
            ("ulimit -v 200000", "MemoryError"),
        ),
        "survived": Case("exit", "certain", shell(SURVIVED), ("input file missing: mesh.inp",)),
        "processor time": Case(
            "cpuLimit", "certain", shell("ulimit -S -t 1; while :; do :; done"), ("CPU",)
        ),
        "file size": Case(
            "fileSizeLimit",
            "certain",
            shell("ulimit -f 8; exec dd if=/dev/zero of=long bs=64k count=9"),
            ("file",),
        ),
        "not found": Case(
            "notFound", "likely", shell("no-such-program --now"), ("no-such-program",)
        ),
        "not found, alone": Case("notFound", "likely", spec(["no-such-program"]), ("PATH",)),
        "not executable": Case("notExecutable", "likely", spec([str(plain)]), ("chmod +x",)),
        "wrong machine": Case("wrongArchitecture", "likely", spec([str(wrong)]), ("uname -m",)),
        "library": Case("libraryMissing", "likely", spec([str(unlinked)]), ("libZ.so.6", "ldd")),
        "traceback": Case(
            "traceback",
            "likely",
            python("import json\njson.loads('{')"),
            ("JSONDecodeError", "json/decoder.py"),
        ),
        "usage": Case("usage", "likely", spec(["ls", "--no-such-option"]), ("--no-such-option",)),
        "launcher": Case(
            "launcher",
            "likely",
            shell("echo 'ssh: connect to host n12 port 22: No route to host' >&2; exit 255"),
            ("n12",),
        ),
        "last word": Case(
            "exit",
            "certain",
            shell('echo "the mesh is inside out" > "$JOBSCRIBE_TERMINATION_MESSAGE"; exit 7'),
            ("inside out",),
        ),
        "time": Case(
            "timeLimit",
            "certain",
            shell("sleep 600", timeLimitSecs=1.0, graceSecs=0.2),
            ("time limit", "1 s"),
            "canceled",
        ),
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisorProcess]:
    made = SupervisorProcess(
        (
            "slots.local_sequential=16",
            "slots.local_parallel=8",
            "slots.op_run=16",
            "resources.local_cpu=8",
            "resources.local_memory_mb=4000",
        )
    )
    try:
        yield made.start()
    finally:
        left = made.end()
    assert left == {}, "everything ends with its keeper"


def typed(site: SupervisorProcess, *words: str) -> "subprocess.CompletedProcess[str]":
    return site.command(*words, timeout=SECS)


def printed(site: SupervisorProcess, run: dict[str, Any]) -> str:
    """Return the output of `job why` for a run."""
    done = typed(site, "job", "why", jid_of(run), "--uid", run["uid"])
    assert done.returncode == 0 and done.stderr == "", (done.stdout, done.stderr)
    return done.stdout


def answered(site: SupervisorProcess, run: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = site.post("job-why", uid=run["uid"], computeJid=jid_of(run))
    return answer


def check(site: SupervisorProcess, name: str, case: Case, text: str | None = None) -> None:
    """Check the explanation of one case. text: the command output, if it is already known."""
    text, answer = text or printed(site, case.run), answered(site, case.run)
    said = (answer["state"], answer["cause"], answer["confidence"])
    assert said == (case.state, case.cause, case.confidence), f"{name}: {said}\n{text}"
    for word in case.words:
        assert word in text, f"{name}: nothing says {word!r}:\n{text}"
    explanation_quality.check(answer, text)
    for log in answer["logs"]:
        assert Path(log).parent.is_dir(), f"{name}: {log} is nowhere"
    brief = site.status(case.run)["why"]
    if case.state != "running":
        assert brief is not None and (brief["cause"], brief["confidence"], brief["sentence"]) == (
            case.cause,
            case.confidence,
            answer["sentence"],
        )


@pytest.fixture(scope="module")
def produced(site: SupervisorProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Submit all failures that need no outside action, and return them when all have ended."""
    cases = by_themselves(tmp_path_factory.mktemp("programs"))
    for case in cases.values():
        site.submit(case.run)
    for case in cases.values():
        site.wait(case.run, SECS)
    return cases


def test_each_end_by_itself_has_its_cause(
    site: SupervisorProcess, produced: dict[str, Case]
) -> None:
    with ThreadPoolExecutor(2) as two:
        texts = dict(
            zip(
                produced,
                two.map(lambda case: printed(site, case.run), produced.values()),
                strict=True,
            )
        )
    wrong: list[str] = []
    for name, case in produced.items():
        try:
            check(site, name, case, texts[name])
        except AssertionError as e:
            wrong.append(str(e))
    assert wrong == [], "\n\n".join(wrong)


def test_a_core_is_where_it_says(site: SupervisorProcess, produced: dict[str, Case]) -> None:
    status = site.status(produced["abort"].run)
    if not status["exit"]["coreDumped"]:
        pytest.skip(
            "the kernel writes no cores here, or gives them to a program: set kernel.core_pattern to 'core' to try this"
        )
    answer, text = answered(site, produced["abort"].run), printed(site, produced["abort"].run)
    assert "core" in text
    if Path("/proc/sys/kernel/core_pattern").read_text().strip() == "core":
        (core,) = (Path(status["runDir"]) / ".jobscribe" / "cores").glob("core.[0-9]*")
        assert any(f"core file {core.name}" in line for line in answer["evidence"]), text


def test_four_that_look_alike_have_four_answers(
    site: SupervisorProcess, produced: dict[str, Case]
) -> None:
    """The causes: out of memory, kill -9, exit code 137, and a cancel."""
    canceled = shell("trap '' TERM; sleep 600 & wait; wait", graceSecs=0.1)
    greedy = gang("greedy", "tail /dev/zero", role={"memoryMb": 32})
    for run in (canceled, greedy):
        site.submit(run)
    site.running(canceled)
    site.cancel(canceled, reason="it was the wrong input")
    assert site.wait(canceled)["exit"]["signal"] == signal.SIGKILL
    over = site.wait(greedy, SECS)
    check(
        site,
        "cancel",
        Case("canceled", "certain", canceled, ("it was the wrong input",), "canceled"),
    )
    if over["exit"]["outOfMemory"] is not True and not _limited(site):
        pytest.skip(
            "memory of jobs cannot be limited here: run as root, or with a delegated cgroup"
        )
    check(site, "memory", Case("outOfMemory", "certain", greedy, ("32 MiB", "more memory")))
    answers = {
        answered(site, r)["cause"]
        for r in (canceled, greedy, produced["kill -9"].run, produced["exit 137"].run)
    }
    assert len(answers) == 4, answers


def _limited(site: SupervisorProcess) -> bool:
    log = next(iter(site.root.glob("agent/*parallel*/agent.log"))).read_text()
    return any(
        line.rstrip().endswith(("v1", "v2"))
        for line in log.splitlines()
        if "cgroups of jobs" in line
    )


def test_a_success_for_which_a_child_was_killed_is_said_to_be_one(site: SupervisorProcess) -> None:
    run = gang("parent", "tail /dev/zero; exit 0", role={"memoryMb": 32})
    site.submit(run)
    over = site.wait(run, SECS)
    if over["exit"]["outOfMemory"] is not True and not _limited(site):
        pytest.skip(
            "memory of jobs cannot be limited here: run as root, or with a delegated cgroup"
        )
    answer, text = answered(site, run), printed(site, run)
    assert (answer["state"], answer["cause"]) == (
        "completed",
        "completed",
    ) and "memory ran out" in answer["sentence"], text


@pytest.mark.skipif(not ROOT, reason="a small file system of its own can be mounted by root only")
def test_a_disk_that_is_full(site: SupervisorProcess, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], check=True)
    try:
        run = shell(f"dd if=/dev/zero of={small}/all bs=64k count=9")
        site.finished(run)
        check(site, "disk", Case("diskFull", "likely", run, ("No space left on device", "df -h")))
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.skipif(not ROOT, reason="a file system of its own can be mounted by root only")
def test_a_quota_that_is_used_up(site: SupervisorProcess, tmp_path: Path) -> None:
    """Use btrfs, because its quotas also limit root and need no extra kernel module."""
    if shutil.which("mkfs.btrfs") is None:
        pytest.skip("mkfs.btrfs is not here: etc/engines/command.sh mkfs.btrfs btrfs-progs")
    image, place = tmp_path / "image", tmp_path / "scratch"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(128 << 20)
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True)
    mounted = subprocess.run(
        ["mount", "-o", "loop", str(image), str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(
            f"this machine cannot mount a btrfs of its own: {mounted.stderr.splitlines()[0]}"
        )
    try:
        for words in (("quota", "enable"), ("qgroup", "limit", "1M")):
            subprocess.run(["btrfs", *words, str(place)], check=True, stdout=subprocess.DEVNULL)
        run = shell(f"dd if=/dev/zero of={place}/all bs=64k count=99")
        site.finished(run)
        check(site, "quota", Case("quota", "likely", run, ("Disk quota exceeded", "quota -s")))
    finally:
        subprocess.run(["umount", str(place)], check=True)


@contextlib.contextmanager
def listening() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield int(taken.getsockname()[1])


def test_what_never_ran_says_so(site: SupervisorProcess, tmp_path: Path) -> None:
    """The causes: a queue limit, a failed dependency, and a run directory that is not writable."""
    blocker = shell("sleep 600", uid="BlockerU", graceSecs=0.2)
    submitted = tmp_path / "submitted"
    first = shell(f"until [ -e {submitted} ]; do sleep 0.05; done; exit 1")
    after = shell("true", after=[{"computeJid": jid_of(first), "on": "ok"}])
    late = {
        **shell("true"),
        "simulationId": blocker["simulationId"],
        "uid": blocker["uid"],
        "computeModel": "late",
        "atOnce": 1,
        "queueLimitSecs": 1.0,
    }
    site.submit({**blocker, "atOnce": 1})
    site.running(blocker)
    for run in (late, first, after):
        site.submit(run)
    submitted.touch()
    site.wait(late), site.wait(after)
    check(site, "dependency", Case("dependency", "certain", after, (jid_of(first),), "canceled"))
    state = site.status(late)["state"]
    check(site, "queue limit", Case("queueLimit", "certain", late, ("queue limit",), state))
    site.cancel(blocker)
    site.wait(blocker)


def test_what_waits_says_for_what(site: SupervisorProcess, tmp_path: Path) -> None:
    """The cases: a retry delay, a held failed attempt, a dependency, an array limit, and a run that
    is being ended.
    """
    again = gang("flaky", "exit 201", retry={"count": 1, "conflictSecs": 600.0})
    kept = gang("kept", "echo broken >&2; exit 9", debugSecs=600.0)
    long = shell("sleep 600", uid="LongRunU", graceSecs=0.2)
    waits = shell("true", after=[{"computeJid": jid_of(long), "on": "any"}], uid="LongRunU")
    second = {
        **shell("true", uid="LongRunU"),
        "simulationId": long["simulationId"],
        "computeModel": "second",
        "atOnce": 1,
    }
    wide = gang("wide", "sleep 600", role={"cpu": 6}, uid="WideUser", graceSecs=0.2)
    wider = gang("wider", "sleep 600", role={"cpu": 6}, uid="WideUser", graceSecs=0.2)
    enough = tmp_path / "enough"
    stubborn = shell(f"trap '' TERM; until [ -e {enough} ]; do sleep 0.1; done", graceSecs=600.0)
    site.submit({**long, "atOnce": 1})
    site.running(long)
    for run in (again, kept, waits, second, wide, stubborn):
        site.submit(run)
    site.running(wide)
    site.submit(wider)
    site.running(stubborn)
    site.cancel(stubborn)
    try:
        for name, case in {
            "retry": Case(
                "retry_wait", "certain", again, ("exit code 201", "attempt 2"), "pending"
            ),
            "hold": Case(
                "debug_hold", "certain", kept, ("job shell", "job release", "broken"), "running"
            ),
            "dependency": Case("dependency", "certain", waits, (jid_of(long),), "pending"),
            "array": Case("array_slot", "certain", second, ("at once",), "pending"),
            "resources": Case("resources", "certain", wider, ("6 cores",), "pending"),
            "stopping": Case("canceled", "certain", stubborn, ("still being stopped",), "canceled"),
        }.items():
            until(
                lambda case=case: (
                    site.post("job-why", uid=case.run["uid"], computeJid=jid_of(case.run))["cause"]
                    == case.cause
                ),
                name,
                SECS,
            )
            state = site.status(case.run)["state"]
            check(site, name, case._replace(state=state))
    finally:
        for run in (again, kept, long, waits, second, wide, wider):
            site.cancel(run)
        enough.touch()
        for run in (again, kept, long, waits, second, wide, wider, stubborn):
            site.wait(run, SECS)


def _pids(site: SupervisorProcess, run: dict[str, Any]) -> list[int]:
    tasks = site.post("job-tasks", uid=run["uid"], computeJid=jid_of(run), attempt=0)["tasks"]
    return [t["pid"] for t in tasks if t.get("pid")]


def test_ends_that_others_bring(site: SupervisorProcess) -> None:
    """A keeper gets SIGTERM. Another keeper is killed together with its agent, its reaper and its
    tasks.
    """
    down, gone = (shell("sleep 600", uid=uid, graceSecs=0.2) for uid in ("ShutDown", "GoneAway"))
    for run in (down, gone):
        site.submit(run)
        site.running(run)
    os.kill(site.keeper("ShutDown")["pid"], signal.SIGTERM)
    task = _pids(site, gone)
    keeper, agent = site.keeper("GoneAway")["pid"], site.agent_pid("GoneAway")
    reaper = psutil.Process(keeper).ppid()
    for pid in (agent, reaper, keeper, *task):
        site.kill(pid, signal.SIGKILL)
    for run in (down, gone):
        site.wait(run, SECS)
    check(site, "shutdown", Case("shutdown", "certain", down, ("stopped from outside",)))
    answer, text = explanation_quality.settled(
        lambda: answered(site, gone), lambda: printed(site, gone)
    )
    assert answer["cause"] in ("lost", "killed") and answer["confidence"] != "certain", text
    explanation_quality.check(answer, text)


def test_an_agent_that_cannot_start_is_named_with_its_reason(tmp_path: Path) -> None:
    made = SupervisorProcess(("limits.agent_start_secs=5", "limits.agent_start_tries=1"))
    try:
        made.start()
        run = shell("true", uid="NoAgentU")
        (made.root / "agent").mkdir(exist_ok=True)
        (made.root / "agent" / str(made.agent_key("NoAgentU"))).write_text(
            "a file where its folder is to be\n"
        )
        over = made.finished(run, SECS)
        assert over["reason"] == "agentStartFailed", over
        answer, text = answered(made, run), printed(made, run)
        assert (answer["cause"], answer["confidence"]) == ("agentStartFailed", "certain"), text
        assert "never started" in text or "never ran" in text, text
        explanation_quality.check({**answer, "logs": answer["logs"] or ["-"]}, text + "-")
    finally:
        made.end()


def test_a_retry_is_the_same_request_and_refused_while_the_job_runs(
    site: SupervisorProcess, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    run = shell(
        f"echo $LETTER; until [ -e {gate} ]; do sleep 0.1; done; exit 4", env={"LETTER": "q"}
    )
    site.submit(run)
    first = site.running(run)["computeJobSerial"]
    refused = typed(site, "job", "retry", jid_of(run))
    assert refused.returncode != 0 and "jobscribe job wait" in refused.stderr, refused
    gate.touch()
    site.wait(run, SECS)
    again = typed(site, "job", "retry", jid_of(run))
    assert (again.returncode, again.stdout.strip()) == (0, jid_of(run)), again
    over = site.wait(run, SECS)
    assert over["computeJobSerial"] != first and over["exit"]["code"] == 4
    assert site.output(run).body == b"q\n"


def test_of_nothing_there_is_no_empty_answer(site: SupervisorProcess) -> None:
    run = shell("exit 3")
    site.finished(run)
    near = jid_of(run).replace("-command", "-comand")
    for words, told in (
        (("job", "why", f"{UID}-nosuch00-command"), "no"),
        (("trace", near), jid_of(run)),
        (("trace", "zzzzzzzz"), "no"),
        (("job", "logs", jid_of(run), "--attempt", "9"), "attempt 9"),
        (("job", "logs", jid_of(run), "--previous"), "attempt"),
        (("explain-exit", "999"), "999"),
    ):
        done = typed(site, *words)
        said = done.stdout + done.stderr
        assert told in said and len(said.split()) > 4 and "Traceback" not in said, (
            words,
            done.returncode,
            said,
        )
        assert done.returncode != 0, (words, said)
