"""App calls with real worker processes: each call gets one answer, and leaves no process or file."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import process_search
import psutil
import pytest

import jobscribe
from jobscribe.agent.host.login_environment import LoginEnvironment
from jobscribe.agent.workers import call_queue as workers_module
from jobscribe.agent.workers import worker_process
from jobscribe.agent.workers.call_queue import QUEUE_LIMIT, CallQueue
from jobscribe.protocol.errors import CODES
from jobscribe.protocol.ids import short_op
from jobscribe.protocol.redaction import Redactor
from jobscribe.protocol.wire.codec import Decoder, Encoder
from jobscribe.protocol.wire.messages import REPLY_LIMIT, Call, CallReply, OpError
from jobscribe.runtime.log.logger import Direct, Log, Record

pytestmark = pytest.mark.process

_PACKAGE = Path(jobscribe.__file__).parent / ".types"
_numbers = itertools.count(1)
#: A value in the agent's environment that must not reach a call.
CANARY = "s3cret-of-the-agent"


class Lines:
    """A sink of a log that keeps records and text."""

    def __init__(self) -> None:
        self.text = ""
        self.records: list[Record] = []
        self._direct = Direct(self)

    def write(self, record: Record) -> None:
        self.records.append(record)
        self._direct.write(record)

    def put(self, text: str) -> None:
        self.text += text


class Pool:
    def __init__(self, place: Path, **more) -> None:
        self.place, self.log = place, Lines()
        self.run_dir, self.lib = place / "run", place / "lib"
        self.run_dir.mkdir()
        self.answers: dict[str, asyncio.Future] = {}
        self.nap = f"86400.{os.getpid()}{next(_numbers):04d}"
        log = Log("agent", Redactor([CANARY]), self.log)
        login = LoginEnvironment(place, timeout_secs=0)
        self.workers = CallQueue(
            log,
            login,
            str(place),
            place / "calls",
            ("probe=probe_app:app", "broken=no_such_module:app"),
            self._reply,
            **more,
        )

    def _reply(self, message: CallReply | OpError) -> None:
        decoder = Decoder("to_supervisor")
        (message,) = [
            m for frame in Encoder().frames([message]) for m in decoder.messages(frame)
        ]  # an answer must be encodable
        self.answers[message.op_id].set_result(message)  # raises for a second answer

    def ask(
        self,
        method="find",
        args=None,
        *,
        cmd="stateless_compute",
        app="probe",
        secs=20.0,
        limit=REPLY_LIMIT,
        run_dir=None,
        data=None,
    ) -> asyncio.Future:
        """Send a call and return a future of its answer, which has the call's id as `op`."""
        op = f"{next(_numbers):032d}"
        answer = self.answers[op] = asyncio.get_running_loop().create_future()
        answer.op = op
        call = Call(
            op_id=op,
            job_cmd=cmd,
            simulation_type=app,
            compute_model="m",
            method=method,
            lib_dir=str(self.lib),
            args=args or {},
            deadline_secs=secs,
            reply_limit=limit,
            run_dir=str(run_dir or self.run_dir),
            data=data or {},
        )
        self.workers.call(call)
        return answer

    async def value(self, *args, **more):
        """Return the app's result."""
        said = await asyncio.wait_for(self.ask(*args, **more), 30)
        assert isinstance(said, CallReply), said
        return json.loads(said.reply)

    async def refusal(self, *args, **more) -> tuple[str, str]:
        """Return the error's code and message."""
        said = await asyncio.wait_for(self.ask(*args, **more), 30)
        assert isinstance(said, OpError), said
        assert said.code in CODES and len(said.error) < 3000
        return said.code, said.error

    async def well(self) -> None:
        """Check that a new process serves the next call."""
        assert (await self.value("find"))["seen"] == []

    def mark(self) -> Path:
        return self.place / f"mark-{next(_numbers)}"

    def naps(self) -> list[psutil.Process]:
        """Return live processes with this test's number in their arguments, found without the
        product's help.
        """
        out = []
        for pid in process_search.pids_with(self.nap):
            with contextlib.suppress(psutil.NoSuchProcess):
                out.append(psutil.Process(pid))
        return out

    def processes(self) -> list[psutil.Process]:
        """Return the worker process and all its descendants."""
        pid = self.workers.worker_pid
        if pid is None:
            return []
        worker = psutil.Process(pid)
        return [worker, *worker.children(recursive=True)]


async def until(condition: Callable[[], object], secs: float = 10.0) -> None:
    deadline = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < deadline, f"nothing came within {secs} s"
        await asyncio.sleep(0.005)


def gone(p: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return p.status() == psutil.STATUS_ZOMBIE
    return True


@pytest.fixture
def agent_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(_PACKAGE), str(Path(__file__).parents[1] / "support")])
    )
    monkeypatch.setenv("JOBSCRIBE_CANARY", CANARY)


@pytest.fixture
async def new_pool(tmp_path: Path, agent_environment: None) -> AsyncIterator[Callable[..., Pool]]:
    """Return a function that creates pools. At the end, check that no process or file is left."""
    made = []

    def make(**more) -> Pool:
        place = tmp_path / f"pool-{len(made)}"
        place.mkdir()
        made.append(Pool(place, **more))
        return made[-1]

    yield make
    for pool in made:
        there = pool.processes()
        pool.workers.close()
        await until(
            lambda there=there: all(map(gone, there)) and not any(p.is_running() for p in there[:1])
        )  # its parent reaps it
        assert pool.naps() == []
        assert not (pool.place / "calls").exists() or list((pool.place / "calls").iterdir()) == []


@pytest.fixture
async def pool(new_pool: Callable[..., Pool]) -> Pool:
    return new_pool()


# ---- the six kinds of calls


async def test_each_kind_gets_what_it_needs(pool: Pool) -> None:
    data = {"models": {"m": {"size": 3}}}
    frame = await pool.value(
        cmd="get_simulation_frame",
        args={"frameReport": "plate", "frameIndex": 2, "colour": "red"},
        data=data,
    )
    assert frame == {
        "report": "plate",
        "frameIndex": 2,
        "frameCount": 3,
        "args": {"colour": "red"},
        "runDir": str(pool.run_dir),
        "data": data,
        "model": "m",
        "lib": str(pool.lib),
    }
    where = await pool.value("where", {"a": [1]}, cmd="analysis_job", data=data)
    assert where == {
        "dir": str(pool.run_dir),
        "lib": str(pool.lib),
        "args": {"a": [1]},
        "data": data,
    }
    assert await pool.value("library", {"b": 2}, cmd="stateful_compute") == {
        "lib": str(pool.lib),
        "args": {"b": 2},
    }
    assert await pool.value("huge", {"text": "x" * 700_000}) == 700_000
    assert await pool.value(cmd="download_run_file", args={"suffix": "csv"}) == {"name": "made.csv"}
    assert await pool.value(cmd="list_run_files") == {"files": ["made.csv"]}


@pytest.mark.parametrize(
    ("cmd", "method", "args", "code", "words"),
    [
        ("stateless_compute", "nothing", {}, "notFound", "find"),
        ("stateful_compute", "nothing", {}, "notFound", "library"),
        ("analysis_job", "__class__", {}, "notFound", "where"),
        (
            "get_simulation_frame",
            "",
            {"frameReport": "other", "frameIndex": 0},
            "notFound",
            "plate",
        ),
        (
            "get_simulation_frame",
            "",
            {"frameReport": "plate", "frameIndex": -1},
            "badRequest",
            "frameIndex",
        ),
        (
            "get_simulation_frame",
            "",
            {"frameReport": "plate", "frameIndex": "1"},
            "badRequest",
            "frameIndex",
        ),
        ("get_simulation_frame", "", {"frameIndex": 1}, "badRequest", "frameReport"),
        (
            "get_simulation_frame",
            "",
            {"frameReport": "plate", "frameIndex": 3},
            "appRefused",
            "there is no frame 3 yet",
        ),
        ("download_run_file", "", {"suffix": "outside"}, "appFailed", "'../secret'"),
        ("download_run_file", "", {"suffix": "link"}, "appFailed", "symbolic link"),
        ("download_run_file", "", {"suffix": "number"}, "appFailed", "int"),
        ("download_run_file", "", {"suffix": 7}, "badRequest", "suffix"),
    ],
)
async def test_what_is_not_there_or_makes_no_sense(
    pool: Pool, cmd: str, method: str, args: dict, code: str, words: str
) -> None:
    got, error = await pool.refusal(method, args, cmd=cmd)
    assert got == code and words in error, error


async def test_lines_about_a_call_carry_its_op(pool: Pool) -> None:
    calls = [pool.ask("find"), pool.ask("no_such_method")]
    await asyncio.gather(*calls)
    for call in calls:
        found = [r for r in pool.log.records if short_op(call.op) in r.message]
        assert found
        for record in found:
            assert record.ids["op"] == short_op(call.op), record


async def test_a_run_directory_that_is_gone(pool: Pool) -> None:
    for cmd in ("analysis_job", "get_simulation_frame", "download_run_file"):
        said = await pool.refusal(
            "where", {"frameReport": "plate", "frameIndex": 0}, cmd=cmd, run_dir=pool.place / "gone"
        )
        assert said == ("notFound", "the run directory is gone")


async def test_an_app_that_is_not_there_or_cannot_be_imported(pool: Pool) -> None:
    code, error = await pool.refusal(app="nosuch")
    assert code == "unknownApp" and "probe" in error
    code, error = await pool.refusal(app="broken")
    assert code == "appFailed" and "no_such_module" in error
    assert "Traceback" not in error and "ModuleNotFoundError" in pool.log.text
    await pool.well()


# ---- isolation between calls


async def test_nothing_leaks_from_one_call_to_the_next(pool: Pool) -> None:
    first = await pool.value("find")
    for _ in range(workers_module.SPARES + 2):
        assert await pool.value("soil") == "soiled"
    after = await pool.value("find")
    for finding in (first, after):
        assert finding.pop("pid") == finding.pop("session")
        for name in ("cwd", "temporary", "random", "modules"):
            finding[f"{name} as before"] = finding.pop(name) == first.get(name)
        finding["env"].pop("TMPDIR")
        # a folder that a call left as it was is used again
        finding.pop("cwd as before"), finding.pop("temporary as before")
    assert not after.pop("random as before")
    first.pop("random as before", None)
    for finding in (first, after):
        finding.pop("modules as before")
    assert after == first
    assert (
        first["files"] == []
        and first["seen"] == []
        and first["umask"] == int(pool.workers._login.umask, 8)
    )
    assert first["tasks"] == first["threads"] == 1
    assert first["term"] == first["child"] == str(signal.SIG_DFL)
    assert len(first["fds"]) == 4 and first["fds"][:3] == [0, 1, 2]


async def test_what_a_call_leaves_in_its_folder_is_removed(pool: Pool) -> None:
    await pool.value("soil")
    calls = pool.place / "calls"
    # only the empty folders of spare processes and later calls remain
    await until(
        lambda: (
            len(found := [(folders, files) for _, folders, files in os.walk(calls)])
            <= 1 + workers_module.SPARES + worker_process.FOLDERS
            and not any(inner or files for inner, files in found[1:])
        )
    )


async def test_calls_have_the_environment_of_a_login_and_no_secret(pool: Pool) -> None:
    found = await pool.value("find")
    env = found["env"]
    assert env.pop("TMPDIR") == found["cwd"]
    assert {k: env.pop(k) for k in list(env) if k.endswith("_NUM_THREADS")}.keys() >= {
        "OMP_NUM_THREADS"
    }
    assert env == pool.workers._login.known
    read = []
    for p in pool.processes():
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # the call just ended
            read.append(Path(f"/proc/{p.pid}/cmdline").read_bytes())
            with contextlib.suppress(
                PermissionError
            ):  # without root, the environment of a non-dumpable process is not readable
                read.append(Path(f"/proc/{p.pid}/environ").read_bytes())
    assert read and CANARY.encode() not in b"".join(read)
    assert found["argv"].startswith("jobscribe worker")


async def test_the_worker_process_has_nothing_of_the_agents_open(pool: Pool) -> None:
    with (pool.place / "held").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        ours = {f for f in open_files("self") if f.startswith("socket:")}
        await pool.value("find")
        theirs = open_files(pool.workers.worker_pid)
        assert theirs and str(pool.place / "held") not in theirs
        assert ours and not ours & theirs


def open_files(pid: int | str | None) -> set[str]:
    out = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            out.add(os.readlink(file))
    return out


async def test_calls_of_one_app_have_different_random_numbers(pool: Pool) -> None:
    found = [(await pool.value("find"))["random"] for _ in range(4)]
    assert len(set(found)) == 4


# ---- one error per cause


@pytest.mark.parametrize(
    ("method", "args", "code", "words"),
    [
        (
            "fail",
            {},
            "appFailed",
            "the method fail of probe failed: ValueError: this number is no number: 7",
        ),
        ("unspeakable", {}, "appFailed", "Unspeakable: (its text cannot be shown"),
        ("say_no", {}, "appRefused", "the lattice must be positive"),
        ("leave_by_exit", {"code": 3}, "appFailed", "exit(3)"),
        ("leave_by_exit", {"code": None}, "appFailed", "exit(None)"),
        ("leave_at_once", {"code": 0}, "appFailed", "exit code 0 instead of returning"),
        ("leave_at_once", {"code": 5}, "appFailed", "exit code 5 instead of returning"),
        ("die", {"signal": 9}, "appFailed", "SIGKILL; the machine may have run out of memory"),
        ("die", {"signal": 15}, "appFailed", "SIGTERM"),
        ("crash", {}, "appFailed", "SIGSEGV"),
        ("returns", {"what": "set"}, "appFailed", "x.y is a set"),
        ("returns", {"what": "nan"}, "appFailed", "plots[0].points[3] is NaN"),
        ("returns", {"what": "bytes"}, "appFailed", "[0] is a bytes"),
        ("returns", {"what": "self"}, "appFailed", "deep"),
        ("returns", {"what": "object"}, "appFailed", "is an object"),
        ("returns", {"what": "half"}, "appFailed", "half"),
        ("scribble", {"hex": "ffffffff" * 4}, "appFailed", "the socket of its own answer"),
        ("scribble", {"hex": "00000001c1"}, "appFailed", "the socket of its own answer"),
        ("write", {"bytes": 1 << 30}, "appFailed", "printed more than 64 MiB"),
        ("write", {"bytes": 1 << 30, "fd": 2}, "appFailed", "printed more than 64 MiB"),
    ],
)
async def test_what_goes_wrong_has_a_sentence_of_its_own(
    pool: Pool, method: str, args: dict, code: str, words: str
) -> None:
    got, error = await pool.refusal(method, args)
    assert got == code and words in error, error
    assert "Traceback" not in error and "\n" not in error
    await pool.well()


async def test_a_trace_reaches_the_log(pool: Pool) -> None:
    await pool.refusal("fail")
    assert "probe_app.py" in pool.log.text and "in fail" in pool.log.text
    await pool.refusal("crash")
    assert "Segmentation fault" in pool.log.text  # from the interpreter's last output


async def test_a_reply_that_is_too_large_is_refused_with_both_sizes(pool: Pool) -> None:
    code, error = await pool.refusal("returns", {"what": "big", "size": 2_000_000}, limit=900_000)
    assert code == "replyTooLarge" and "2,000,002" in error and "900,000" in error
    assert await pool.value("returns", {"what": "big", "size": REPLY_LIMIT - 2}) == "x" * (
        REPLY_LIMIT - 2
    )
    assert await pool.value("returns", {"what": "none"}) is None


async def test_what_is_printed_goes_to_the_log_and_never_into_the_reply(pool: Pool) -> None:
    assert await pool.value("speak", {"text": "hello\nforged line " + "y" * 20_000}) == 1
    line = next(row for row in pool.log.text.splitlines() if " printed " in row)
    assert "hello\\nforged line" in line and len(line) < 10_000 and "20032 bytes" in line
    assert await pool.value("write", {"bytes": 3 << 20}) == "written"
    assert f"printed {3 << 20} bytes" in pool.log.text
    assert await pool.value("close_all") == "closed"


async def test_a_call_is_one_line_in_the_log(pool: Pool) -> None:
    answer = pool.ask("speak", {"text": "x"})
    await answer
    rows = [row for row in pool.log.text.splitlines() if "jobCmd=" in row]
    assert len(rows) == 1
    for word in (
        "opName=analysis",
        f"o={answer.op[:6]} ",
        "jobCmd=stateless_compute",
        "app=probe",
        "method=speak",
        "seconds=",
        "outcome=ok bytes=1",
    ):
        assert word in rows[0], rows[0]


# ---- stops


@pytest.mark.parametrize("method", ["hang", "deaf", "in_c"])
async def test_a_deadline_ends_the_process(pool: Pool, method: str) -> None:
    await pool.well()
    mark = pool.mark()
    begin = time.monotonic()
    answer = pool.ask(method, {"mark": str(mark)}, secs=0.7)
    await until(mark.exists)
    running = [p for p in pool.processes() if (pool.place / "calls").exists()]
    code, error = (said := await answer).code, said.error
    assert code == "deadline" and "0.7 s" in error
    assert 0.7 <= time.monotonic() - begin < 5 * (0.7 + 1.0)
    assert sum(not gone(p) for p in running) < len(running)
    await pool.well()


#: Each command outlives its parent, leaves its session, or does both. The test replaces NAP.
LEAVES = {
    "a session of its own": "exec sleep NAP",
    "a daemon, forked twice": "( setsid sh -c 'sleep NAP & exec sleep NAP' & ); sleep 0.05; exit 0",
    "deaf to SIGTERM": "trap '' TERM HUP INT; sleep NAP; sleep NAP",
    "everything shed": "( setsid env -i /bin/sh -c 'exec 0<&- 1>&- 2>&-; /bin/sleep NAP & /bin/sleep NAP' & ); exit 0",
    "many": "for i in 1 2 3 4 5 6 7 8 9 10; do setsid sleep NAP & done; exit 0",
    "stopped": "sleep NAP & kill -STOP $$; sleep NAP",
}


@pytest.mark.parametrize("how", ["wait", "die", "return"])
@pytest.mark.parametrize("shell", LEAVES.values(), ids=LEAVES.keys())
async def test_what_a_call_has_started_ends_with_it(pool: Pool, shell: str, how: str) -> None:
    await pool.well()
    answer = pool.ask(
        "leave",
        {"shell": shell.replace("NAP", pool.nap), how: True},
        secs=1.0 if how == "wait" else 20,
    )
    if how == "wait":
        await until(pool.naps)
        assert (await answer).code == "deadline"
        assert pool.naps() == []  # the answer comes only after all processes are gone
    else:
        await answer
        await until(lambda: not pool.naps())
    await pool.well()
    assert pool.naps() == []


async def test_one_that_runs_away_by_forking_is_caught(pool: Pool) -> None:
    """Each process starts the next one in a new session and exits, so a pid is always outdated."""
    runner = pool.place / "runner.sh"
    # the chain is bounded, in case it escapes
    runner.write_text(
        f"[ $(( $1 )) -lt 20000 ] && setsid sh {runner} $(($1 + 1)) {pool.nap} & exit 0\n"
    )
    for how in ("wait", "die", "return"):
        await pool.ask(
            "leave", {"shell": f"sh {runner} 0 {pool.nap}", how: True, "pause": 0.3}, secs=0.7
        )
        await until(lambda: not pool.naps())
        await asyncio.sleep(0.05)
        assert pool.naps() == []
        await pool.well()


async def test_one_call_is_not_mistaken_for_another(pool: Pool) -> None:
    """When one call is killed, the processes of another call continue."""
    stays = pool.ask(
        "leave", {"shell": f"( setsid sleep {pool.nap} & ); exit 0", "wait": True}, secs=20
    )
    await until(lambda: [p.name() for p in pool.naps()] == ["sleep"])
    (kept,) = pool.naps()
    ends = await pool.ask(
        "leave", {"shell": f"( setsid sleep {pool.nap} & ); exit 0", "wait": True}, secs=0.5
    )
    assert ends.code == "deadline"
    assert pool.naps() == [kept] and not stays.done()
    pool.workers.cancel(stays.op)
    await until(lambda: not pool.naps())


async def test_a_canceled_call_is_stopped_and_not_answered(pool: Pool) -> None:
    answer = pool.ask("leave", {"shell": f"exec sleep {pool.nap}", "wait": True})
    await until(pool.naps)
    pool.workers.cancel(answer.op)
    pool.workers.cancel(answer.op)
    pool.workers.cancel("f" * 32)
    await until(lambda: not pool.naps() and "outcome=canceled" in pool.log.text)
    await pool.well()
    assert not answer.done()


async def test_a_call_that_comes_twice_is_answered_once(pool: Pool) -> None:
    answer = pool.ask("nap", {"secs": 0.2})
    call = pool.workers._works[answer.op].call
    pool.workers.call(call)
    assert isinstance(await answer, CallReply)
    await pool.well()  # a second answer would have raised
    assert pool.log.text.count("method=nap") == 1


# ---- the queue


async def test_so_many_run_at_once_and_so_many_wait(new_pool: Callable[..., Pool]) -> None:
    pool = new_pool(at_once=2)
    await pool.well()
    marks = [pool.mark() for _ in range(QUEUE_LIMIT + 5)]
    answers = [pool.ask("hang", {"mark": str(m)}) for m in marks]
    refused = [a for a in answers if a.done()]
    await until(lambda: sum(m.exists() for m in marks) == 2)
    assert [a.result().code for a in refused] == ["tooManyRequests"] * len(refused) and len(
        refused
    ) in (3, 4, 5)
    await asyncio.sleep(0.1)
    assert sum(m.exists() for m in marks) == 2
    for answer in answers:
        pool.workers.cancel(answer.op)
    await pool.well()


async def test_the_deadline_counts_while_it_waits(new_pool: Callable[..., Pool]) -> None:
    pool = new_pool(at_once=1)
    mark = pool.mark()
    first = pool.ask("hang", {"mark": str(mark)})
    await until(mark.exists)
    never = pool.mark()
    code, error = await pool.refusal("hang", {"mark": str(never)}, secs=0.2)
    assert code == "deadline" and "waited" in error and not never.exists()
    late = pool.ask("nap", {"secs": 0})
    pool.workers.cancel(first.op)
    assert isinstance(await late, CallReply)


async def test_calls_run_side_by_side(new_pool: Callable[..., Pool]) -> None:
    pool = new_pool(at_once=4)
    marks = [pool.mark() for _ in range(4)]
    answers = [pool.ask("hang", {"mark": str(m)}) for m in marks]
    await until(lambda: all(m.exists() for m in marks))
    for answer in answers:
        pool.workers.cancel(answer.op)


# ---- the worker process


async def test_a_killed_worker_process_is_replaced(pool: Pool) -> None:
    await pool.well()
    answers = [
        pool.ask("leave", {"shell": f"exec sleep {pool.nap}", "wait": True}) for _ in range(2)
    ]
    await until(lambda: len(pool.naps()) == 2)
    before = pool.processes()
    os.kill(pool.workers.worker_pid, signal.SIGKILL)
    for answer in answers:
        said = await asyncio.wait_for(answer, 10)
        assert (
            said.code == "agentUnavailable" and CODES[said.code].retry and "signal 9" in said.error
        )
    forks = [p for p in before if p.pid not in [n.pid for n in pool.naps()]]
    await until(lambda: all(map(gone, forks)))
    for p in pool.naps():  # in an agent, the keeper adopts and ends them
        p.kill()
    await pool.well()
    assert pool.workers.worker_pid not in [p.pid for p in before]


async def test_a_call_that_kills_the_worker_process_costs_itself_and_those_in_flight(
    pool: Pool,
) -> None:
    code, _ = await pool.refusal("kill_parent")
    assert code == "agentUnavailable"
    await pool.well()


async def test_those_that_wait_are_served_by_the_next_worker_process(
    new_pool: Callable[..., Pool],
) -> None:
    pool = new_pool(at_once=1)
    answers = [pool.ask("kill_parent"), *(pool.ask("nap", {"secs": 0}) for _ in range(5))]
    said = await asyncio.gather(*answers)
    assert [type(s) for s in said] == [OpError, *[CallReply] * 5]


async def test_a_worker_process_that_cannot_start_is_no_loop(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    code, error = await pool.refusal("find")
    assert code == "agentUnavailable" and "cannot start a worker process" in error
    monkeypatch.setattr("sys.executable", "/bin/false")
    code, error = await pool.refusal("find")
    assert code == "agentUnavailable" and "exit code 1" in error
    starts = pool.log.text.count("starts")
    await asyncio.sleep(0.2)
    assert pool.log.text.count("starts") == starts == 1
    monkeypatch.undo()
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(_PACKAGE), str(Path(__file__).parents[1] / "support")])
    )
    await pool.well()


async def test_what_a_call_imports_is_there_for_the_next_ones(pool: Pool) -> None:
    first = await pool.value("late_import")
    assert first == {"there": False, "name": "xmlrpc.client", "probe": True}

    async def there() -> bool:
        return (await pool.value("late_import"))["there"]

    deadline = time.monotonic() + 10
    while not await there():
        assert time.monotonic() < deadline
    assert [await there() for _ in range(4)] == [True] * 4


@pytest.mark.parametrize(
    ("how", "body"),
    [
        ("hangs", "import os, time\nif os.getppid() == {agent}: time.sleep(86400)\n"),
        ("dies", "import os\nif os.getppid() == {agent}: os._exit(3)\n"),
        ("exits", "import os, sys\nif os.getppid() == {agent}: sys.exit(3)\n"),
    ],
)
async def test_an_import_that_goes_wrong_in_the_worker_process_is_not_tried_again(
    pool: Pool,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    body: str,
) -> None:
    monkeypatch.setattr(workers_module, "LOAD_SECS", 0.5)
    modules = pool.place / "modules"
    modules.mkdir()
    (modules / f"trap_{how}.py").write_text(body.format(agent=os.getpid()))
    monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"] + os.pathsep + str(modules))
    args = {"folder": str(modules), "how": f"trap_{how}"}
    assert await pool.value("late_import_of_a_trap", args) == f"trap_{how}"
    await until(
        lambda: (
            ("the worker process ended" if how != "exits" else "cannot import for later calls")
            in pool.log.text
        )
    )
    ends = pool.log.text.count("the worker process ended")
    for _ in range(4):
        assert await pool.value("late_import_of_a_trap", args) == f"trap_{how}"
    await asyncio.sleep(0.7)
    assert pool.log.text.count("the worker process ended") == ends
    await pool.well()


async def test_a_worker_process_with_old_apps_is_replaced_when_no_call_is_under_way(
    pool: Pool,
) -> None:
    pool.workers.reload_apps(("probe=probe_app:app",))
    assert pool.workers.worker_pid is None, "none is started for nothing"
    await pool.well()
    old = psutil.Process(pool.workers.worker_pid)
    under_way = pool.ask("nap", {"secs": 0.3})
    await until(lambda: pool.workers._busy)
    pool.workers.reload_apps(("probe=probe_app:app", "other=probe_app:app"))
    waits = pool.ask("nap", {"secs": 0})
    assert pool.workers.worker_pid == old.pid and pool.workers._also[1] == "other=probe_app:app"
    assert isinstance(await under_way, CallReply), "it goes on as it began"
    assert (
        isinstance(await asyncio.wait_for(waits, 30), CallReply)
        and pool.workers.worker_pid != old.pid
    )
    await until(lambda: gone(old))


async def test_close_ends_everything(pool: Pool) -> None:
    answer = pool.ask(
        "leave", {"shell": f"( setsid sleep {pool.nap} & ); exec sleep {pool.nap}", "wait": True}
    )
    await until(lambda: len(pool.naps()) >= 2)
    there = pool.processes()
    pool.workers.close()
    await until(
        lambda: all(map(gone, there)) and not pool.naps() and not there[0].is_running()
    )  # its parent reaps it
    assert not answer.done() and not (pool.place / "calls").exists()
