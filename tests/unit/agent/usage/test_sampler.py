"""Resource usage of jobs: all their processes count, including ended ones, none counts twice, and
an unknown value is not 0.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from jobscribe.agent.usage import gpu_counters, proc_counters
from jobscribe.agent.usage import sampler as samples_module
from jobscribe.agent.usage.gpu_counters import UNKNOWN, Gpus, Use
from jobscribe.agent.usage.proc_counters import Process, lost
from jobscribe.agent.usage.process_membership import Execution, ProcessMembership
from jobscribe.agent.usage.sampler import SampledExecution, UsageSampler, pause_after, take_samples
from jobscribe.protocol.ids import Token
from jobscribe.protocol.redaction import Redactor
from jobscribe.protocol.wire import messages
from jobscribe.protocol.wire.messages import Sample
from jobscribe.runtime.log.logger import Log

from ..conftest import Keeper, until

pytestmark = pytest.mark.process

#: Use the given number of CPU seconds, then exit.
BURN = "import sys, time\nwhile time.process_time() < float(sys.argv[1]): sum(range(10000))\n"
NO_CARDS = Gpus(lambda: None)


@pytest.fixture
def who() -> int:
    """Run as the current user only: the user makes no difference here."""
    return -1


@pytest.fixture
def keeper(new_keeper: Callable[..., Keeper], request: pytest.FixtureRequest) -> Keeper:
    """Start a keeper without cgroups, or as the test's parameter says."""
    return new_keeper(cgroups={"use": getattr(request, "param", "off")})


#: With cgroups, where this machine allows them, and without.
either_way = pytest.mark.parametrize("keeper", ["auto", "off"], indirect=True)


class Watch:
    """Sample executions of a real keeper in the same way as the agent."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper, self.members = keeper, ProcessMembership(keeper.process.pid)
        self.watched: dict[Token, SampledExecution] = {}

    def start(self, shell: str) -> Token:
        token = self.keeper.launch(shell.replace("BURN", f"'{sys.executable}' '{self.script()}'"))
        said = self.keeper.next("started", token)
        self.add(token, said["pid"], said["startTicks"])
        return token

    def add(self, token: Token, pid: int, ticks: int) -> None:
        execution = Execution(token.name, str(token), str(self.keeper.evidence(token)), pid, ticks)
        self.watched[token] = SampledExecution(token, execution, time.monotonic())

    def script(self) -> Path:
        path = self.keeper.place / "burn.py"
        path.write_text(BURN)
        return path

    def look(self) -> dict[Token, Sample]:
        return {
            s.token: s for s in take_samples(list(self.watched.values()), self.members, NO_CARDS)
        }

    def at(self, token: Token) -> Sample:
        return self.look()[token]

    def sleepers(self) -> set[int]:
        """Return the pids of the sleeps, without the shells that have the number in their
        arguments.
        """
        found = set()
        for p in self.keeper.naps():
            with contextlib.suppress(psutil.NoSuchProcess):
                if p.name() == "sleep":
                    found.add(p.pid)
        return found

    def slept(self, n: int = 1) -> set[int]:
        """Wait until there are `n` sleeps, and return their pids."""
        return until(lambda: (found := self.sleepers()) and len(found) == n and found)

    def known(self, token: Token) -> set[int]:
        return set(self.watched[token].execution.seen)


@pytest.fixture
def watch(keeper: Keeper) -> Watch:
    return Watch(keeper)


def cpu(sample: Sample) -> float:
    assert sample.cpu_secs is not None
    return sample.cpu_secs


def oracle(pids: set[int]) -> float:
    """Return the CPU seconds of these processes, as psutil reads them."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


# ---- processors


def test_two_busy_loops_are_counted_as_two(watch: Watch) -> None:
    token = watch.start("while :; do :; done & while :; do :; done")
    until(lambda: (watch.at(token).processes or 0) >= 2 and cpu(watch.at(token)) > 0.2)
    began, before = time.monotonic(), oracle(watch.known(token))
    watch.look()
    # measure over one second of both loops together, which may take longer on a busy machine
    until(lambda: oracle(watch.known(token)) - before > 1.0, secs=60)
    sample = watch.at(token)
    expected = 100 * (oracle(watch.known(token)) - before) / (time.monotonic() - began)
    print(f"read {sample.cpu_percent} %, by another reader {expected:.0f} %")
    assert sample.cpu_percent == pytest.approx(expected, rel=0.1, abs=6)
    assert cpu(sample) > 1.0, "nothing was measured"


def test_who_sleeps_takes_nothing(watch: Watch) -> None:
    token = watch.start("sleep NAP")
    watch.slept()
    watch.look()
    time.sleep(0.5)  # measure over half a second
    sample = watch.at(token)
    assert sample.cpu_percent is not None and sample.cpu_percent < 20
    assert (sample.processes, sample.gpu_percent, sample.gpu_memory_bytes) == (
        len(watch.known(token)),
        None,
        None,
    )


@either_way
def test_a_child_that_ended_is_counted_once(watch: Watch) -> None:
    token = watch.start("BURN 0.6; BURN 0.3; sleep NAP")
    seen = []
    until(lambda: seen.append(cpu(watch.at(token))) or watch.sleepers())
    after = cpu(watch.at(token))
    assert seen == sorted(seen), "it only grows"
    took = oracle_waited(watch, token)
    assert 0.85 <= after <= took + 0.1, "every ended child once"


def oracle_waited(watch: Watch, token: Token) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:4]) for pid in watch.known(token))


def test_an_orphan_that_ended_is_not_forgotten(watch: Watch) -> None:
    token = watch.start(
        "(BURN 0.8 &); until [ -e enough ]; do sleep 0.05; done; BURN 0.5; sleep NAP"
    )
    until(lambda: cpu(watch.at(token)) > 0.5)
    until(lambda: watch.at(token) and not any(burns(pid) for pid in watch.known(token)))
    (watch.keeper.run_dir(token) / "enough").touch()
    until(lambda: watch.look() and watch.sleepers())
    assert 0.5 + 0.5 - 0.05 <= cpu(watch.at(token)) < 1.3 + 0.6, (
        "what the keeper buried was the job's all the same"
    )


def burns(pid: int) -> bool:
    try:
        return any(word.endswith("/burn.py") for word in psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return False


@either_way
@pytest.mark.parametrize(
    "text",
    [
        "(env -i sh -c 'exec 9>&-; exec sleep NAP' &); sleep NAP",
        "(setsid sh -c 'exec 9>&-; exec sleep NAP' &); sleep NAP",
        "(env -i setsid sleep NAP &); sleep NAP",
        "setsid sh -c '(sleep NAP &) ; sleep NAP'",
    ],
    ids=["its session tells", "its environment tells", "its lock tells", "a session below"],
)
def test_daemons_are_members_also_when_nobody_saw_them_leave(watch: Watch, text: str) -> None:
    token = watch.start(text)
    naps = watch.slept(2)
    watch.look()
    assert naps <= watch.known(token)


@either_way
def test_where_there_are_cgroups_the_kernel_says_who_is_a_member(watch: Watch) -> None:
    token = watch.start(
        "(setsid env -i /bin/sh -c 'exec 0<&- 1>&- 2>&- 9>&-; exec /bin/sleep NAP' &); sleep NAP"
    )
    naps = watch.slept(2)
    watch.look()
    there = watch.watched[token].execution.cgroup is not None
    assert there == watch.keeper.hello["cgroups"].startswith("v")
    assert len(naps & watch.known(token)) == (2 if there else 1), (
        "what shed everything is seen by cgroup only"
    )


@either_way
def test_jobs_do_not_count_for_each_other(watch: Watch) -> None:
    quiet, busy = watch.start("sleep NAP"), watch.start("(setsid BURN 1000 &); sleep NAP")
    until(lambda: cpu(watch.look()[busy]) > 0.5)
    both = watch.look()
    assert cpu(both[quiet]) < 0.3
    assert not watch.known(quiet) & watch.known(busy)


def test_members_are_found_where_the_kernel_tells_no_children(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proc_counters, "children", lambda p: None)
    token = watch.start("(setsid sleep NAP &); sh -c 'sleep NAP; :'")
    naps = watch.slept(2)
    watch.look()
    assert naps <= watch.known(token)


def test_children_of_every_thread_are_found(watch: Watch) -> None:
    program = "import subprocess, threading; t = threading.Thread(target=lambda: subprocess.run(['sleep', 'NAP'])); t.start(); t.join()"
    token = watch.start(f"'{sys.executable}' -c \"{program}\"")
    naps = watch.slept()
    watch.look()
    assert naps <= watch.known(token)


def test_what_an_earlier_keeper_started_is_counted_too(new_keeper: Callable[..., Keeper]) -> None:
    first = new_keeper(cgroups={"use": "off"})
    token = first.started("(sleep NAP &); sleep NAP")
    naps = Watch(first).slept(2)
    first.kill()
    second = new_keeper(cgroups={"use": "off"})
    (known,) = second.hello["executions"]
    watch = Watch(second)
    watch.add(token, known["pid"], known["startTicks"])
    watch.look()
    assert naps <= watch.known(token)


def test_a_pid_that_is_anothers_now_is_not_looked_at(watch: Watch) -> None:
    token = watch.start("sleep NAP")
    pid = watch.watched[token].execution.pid
    watch.watched.clear()
    watch.add(token, pid, 1)
    assert watch.look() == {}


# ---- memory and disks


def test_memory_is_seen_and_what_is_shared_counts_once(watch: Watch) -> None:
    program = "import os, time; b = bytearray(b'x' * (100 << 20)); os.fork(); open(f'there-{os.getpid()}', 'w'); time.sleep(NAP)"
    token = watch.start(f"exec '{sys.executable}' -c \"{program}\"")
    until(lambda: len(list(watch.keeper.run_dir(token).glob("there-*"))) == 2)
    sample = watch.at(token)
    assert sample.memory_bytes is not None and 100 << 20 < sample.memory_bytes < 180 << 20


def test_bytes_from_and_to_disks_are_counted(watch: Watch) -> None:
    # other files of tests may lie in memory
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as file:
        token = watch.start(
            f"dd if=/dev/zero of={file.name} bs=1M count=8 conv=fsync 2>/dev/null; sleep NAP"
        )
        watch.slept()
        sample = watch.at(token)
    assert sample.read_bytes is not None
    assert sample.written_bytes is not None and sample.written_bytes >= 8 << 20, (
        "its child was waited for: it has its bytes"
    )


def test_what_one_process_does_not_tell_is_not_known(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = watch.start("sleep NAP; :")
    until(lambda: len(watch.known(token)) >= 2 if watch.look() else False)
    tells = proc_counters.traffic
    monkeypatch.setattr(
        proc_counters,
        "traffic",
        lambda pid: tells(pid) if pid == watch.watched[token].execution.pid else None,
    )
    sample = watch.at(token)
    assert (sample.read_bytes, sample.written_bytes) == (None, None)
    assert sample.memory_bytes and sample.cpu_secs is not None, "the rest is"


def test_who_ends_between_two_looks_is_no_error(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = watch.start("sleep NAP & sleep NAP; wait")
    watch.slept(2)
    watch.look()

    def memory(p: Process) -> int | None:
        for nap in watch.keeper.naps():
            with contextlib.suppress(psutil.NoSuchProcess):
                nap.kill()
        return read(p)

    read = proc_counters.memory
    monkeypatch.setattr(proc_counters, "memory", memory)
    watch.look()
    watch.keeper.end_of(token)
    assert watch.look() == {}


# ---- usage of ended processes, as a table


def p(pid: int, parent: int, total: float = 0.0, waited: float = 0.0, ticks: int = 1) -> Process:
    return Process(pid, ticks, parent, pid, 1, False, total, waited)


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        ([p(1, 0, 1.0), p(2, 1, 5.0)], [p(1, 0, 1.0), p(2, 1, 9.0)], 0.0),
        ([p(1, 0, 1.0), p(2, 1, 5.0)], [p(1, 0, 6.5, 5.5)], 0.0),  # its parent waited for it
        ([p(1, 0, 1.0), p(2, 1, 5.0)], [p(1, 0, 1.0)], 5.0),  # no parent waited for it
        ([p(1, 0, 1.0), p(2, 9, 5.0)], [p(1, 0, 1.0)], 5.0),  # its parent is another process
        (
            [p(1, 0, 1.0), p(2, 1, 5.0), p(3, 2, 2.0)],
            [p(1, 0, 8.2, 7.2)],
            0.0,
        ),  # child and grandchild; each parent waited
        (
            [p(1, 0, 1.0), p(2, 1, 5.0), p(3, 2, 2.0)],
            [p(1, 0, 6.0, 5.0)],
            2.0,
        ),  # no parent waited for the grandchild
        (
            [p(1, 0, 1.0), p(2, 1, 5.0)],
            [p(1, 0, 1.0), p(2, 7, 0.5, ticks=2)],
            5.0,
        ),  # the pid was reused
        (
            [p(1, 0, 4.0, 2.0), p(2, 1, 5.0)],
            [p(1, 0, 9.5, 7.5)],
            0.0,
        ),  # only the increase counts
        ([p(1, 0, 4.0)], [], 4.0),
    ],
)
def test_what_is_lost(before: list[Process], now: list[Process], what: float) -> None:
    was, there = {x.pid: x for x in before}, {x.pid: x for x in now}
    handed = {pid: x.waited - was[pid].waited for pid, x in there.items() if pid in was}
    assert lost(was, there, {pid: x.cpu for pid, x in was.items()}, handed) == pytest.approx(what)


# ---- GPUs


class NVMLError(Exception):
    pass


class Library:
    """A fake pynvml. `cards` holds (busy percent, {pid: bytes}) per card; an exception in place of
    a value is raised.
    """

    def __init__(self, *cards: Any, init: Exception | None = None) -> None:
        self.cards, self._init, self.begun = cards, init, 0

    def nvmlInit(self) -> None:
        self.begun += 1
        if self._init is not None:
            raise self._init

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> Any:
        return self.cards[number]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in told(handle[1]).items()
        ]

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return SimpleNamespace(gpu=told(handle[0]), memory=99)


def told(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.mark.parametrize(
    ("cards", "use"),
    [
        ([(40, {7: 100})], Use(40.0, 100)),
        (
            [(40, {7: 100}), (60, {7: 50, 8: 3}), (90, {9: 1})],
            Use(50.0, 153),
        ),  # the mean of the job's own cards
        ([(40, {99: 100})], UNKNOWN),
        ([(0, {7: 0})], Use(0.0, 0)),  # known to be 0
        ([(NVMLError("not supported"), {7: 100})], Use(None, 100)),
        ([(40, {7: 100}), (NVMLError("not supported"), {7: 100})], Use(None, 200)),
        ([(40, {7: None})], Use(40.0, None)),
        ([(40, {7: None, 8: 5})], Use(40.0, None)),
        ([(40, NVMLError("no permission"))], UNKNOWN),
        ([], UNKNOWN),
    ],
)
def test_what_cards_say_of_a_jobs_processes(cards: list[Any], use: Use) -> None:
    assert gpu_counters.use(Gpus(lambda: Library(*cards)).read_cards(), frozenset({7, 8})) == use


def test_a_machine_without_is_asked_once_and_never_an_error() -> None:
    def absent() -> Any:
        asked.append(1)
        raise ModuleNotFoundError("No module named 'pynvml'")

    asked: list[int] = []
    none = Gpus(absent)
    assert (none.read_cards(), none.read_cards(), asked) == ((), (), [1])
    undriven = Library((1, {1: 1}), init=NVMLError("driver not loaded"))
    cards = Gpus(lambda: undriven)
    assert (cards.read_cards(), cards.read_cards(), undriven.begun) == ((), (), 1)


def test_gpus_of_a_real_job_are_found_by_the_pids_of_its_processes(watch: Watch) -> None:
    token = watch.start("sleep NAP & sleep NAP")
    naps = sorted(watch.slept(2))
    cards = Gpus(lambda: Library((50, {naps[0]: 1 << 30}), (100, {naps[1]: 1 << 30, 1: 5})))
    (sample,) = take_samples(list(watch.watched.values()), watch.members, cards)
    assert (sample.token, sample.gpu_percent, sample.gpu_memory_bytes) == (token, 75.0, 2 << 30)


# ---- sample times


class Lines:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, record: Any) -> None:
        self.lines.append(record.message)


class Agent:
    """The parts of an agent that `UsageSampler` needs."""

    def __init__(self, place: Path) -> None:
        self.sent: list[messages.Samples] = []
        self.lines = Lines()
        log = Log("agent", Redactor(), self.lines)
        self.samples = UsageSampler(place, os.getpid(), self.sent.append, log, cards=NO_CARDS)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, n: int = 0) -> Token:
        token = Token("user1234-sim12345-command", 1, 1, "main", n)
        process = subprocess.Popen(["sleep", "86400"])
        self.processes.append(process)
        self.samples.follow(token, process.pid, psutil_ticks(process.pid), 0.0)
        return token

    async def hears(self, n: int, secs: float = 10.0) -> None:
        async with asyncio.timeout(secs):
            while len(self.sent) < n:
                await asyncio.sleep(0.01)


def psutil_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    a = Agent(tmp_path)
    yield a
    a.samples.close()
    for process in a.processes:
        process.kill()
        process.wait()


async def test_the_first_sample_comes_soon_and_others_follow(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples_module, "EVERY_SECS", 0.3)
    monkeypatch.setattr(samples_module, "FIRST_SECS", 0.1)
    token = agent.start()
    await agent.hears(3, secs=5 * 1.0)
    assert [[s.token for s in m.samples] for m in agent.sent[:3]] == [[token]] * 3
    first = agent.sent[0].samples[0]
    assert first.processes == 1 and first.memory_bytes and abs(first.at - time.time()) < 60


async def test_nothing_is_looked_at_while_nothing_runs(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples_module, "FIRST_SECS", 0.05)
    monkeypatch.setattr(samples_module, "EVERY_SECS", 0.05)
    loop = asyncio.get_running_loop()
    assert agent.samples._timer is None
    token = agent.start()
    agent.samples.follow(token, 1, 1, 0.0)
    assert agent.samples._timer is not None and agent.samples._timer.when() <= loop.time() + 0.05
    await agent.hears(1)
    agent.samples.unfollow(token)
    said = len(agent.sent)
    assert agent.samples._timer is None and agent.samples._following == {}
    for _ in range(200):
        await asyncio.sleep(0.001)
    assert len(agent.sent) == said
    assert agent.samples._sampling is None and agent.samples._timer is None


async def test_who_connects_anew_is_told_soon(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples_module, "FIRST_SECS", 0.05)
    agent.samples.resend()
    assert agent.samples._timer is None, "no job runs"
    agent.start()
    await agent.hears(1)
    now = asyncio.get_running_loop().time
    assert agent.samples._timer is not None and agent.samples._timer.when() > now() + 1, (
        "the next one is a while away"
    )
    agent.samples.resend()
    assert agent.samples._timer.when() <= now() + 0.05
    await agent.hears(2)


async def test_who_ended_while_he_was_looked_at_is_not_told(agent: Agent) -> None:
    gone, stays = agent.start(0), agent.start(1)
    samples = [
        Sample(t, 1.0, None, None, None, None, None, None, None, None) for t in (gone, stays)
    ]
    agent.samples.unfollow(gone)
    agent.samples._sampled(samples, None, 5.0)
    assert [s.token for m in agent.sent for s in m.samples] == [stays]


async def test_who_starts_during_a_look_does_not_wait_for_the_next_but_one(agent: Agent) -> None:
    agent.start(0)
    agent.samples._start_sample()
    agent.start(1)
    await agent.hears(1)
    assert agent.samples._timer is not None
    assert (
        agent.samples._timer.when() <= asyncio.get_running_loop().time() + samples_module.FIRST_SECS
    )


async def test_a_look_that_fails_is_said_and_tried_again(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> list[Sample]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(samples_module, "FIRST_SECS", 0.01)
    monkeypatch.setattr(samples_module, "LONGEST_SECS", 0.05)
    monkeypatch.setattr(samples_module, "take_samples", failing)
    agent.start()
    async with asyncio.timeout(10):
        while len(agent.lines.lines) < 2:
            await asyncio.sleep(0.01)
    assert "retrying" in agent.lines.lines[0]
    monkeypatch.undo()
    await agent.hears(1)


async def test_many_are_told_in_messages_of_a_bounded_size(agent: Agent) -> None:
    tokens = [agent.start(0)] + [
        Token("user1234-sim12345-command", 1, 1, "main", n) for n in range(1, 450)
    ]
    for token in tokens:
        agent.samples._following.setdefault(token, agent.samples._following[tokens[0]])
    agent.samples._sampled(
        [Sample(t, 1.0, None, None, None, None, None, None, None, None) for t in tokens], None, 5.0
    )
    assert [len(m.samples) for m in agent.sent] == [200, 200, 50]


@pytest.mark.parametrize(
    ("cost", "pause"), [(0.0, 5.0), (0.01, 5.0), (0.05, 5.0), (0.1, 10.0), (0.4, 40.0), (3.0, 60.0)]
)
def test_looks_cost_at_most_a_hundredth_of_a_core(cost: float, pause: float) -> None:
    assert pause_after(cost) == pause


def test_how_much_looking_costs_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [
        subprocess.Popen(["sh", "-c", "sleep 86400; :"], start_new_session=True) for _ in range(10)
    ]
    try:
        watched = [
            SampledExecution(
                t := Token("user1234-sim12345-command", 1, 1, "main", n),
                Execution(t.name, str(t), str(tmp_path), j.pid, psutil_ticks(j.pid)),
                None,
            )
            for n, j in enumerate(jobs)
        ]
        members = ProcessMembership(os.getpid())
        until(lambda: sum(s.processes or 0 for s in take_samples(watched, members, NO_CARDS)) == 20)
        costs = []
        for _ in range(10):
            began = time.thread_time()
            take_samples(watched, members, NO_CARDS)
            costs.append(time.thread_time() - began)
    finally:
        for j in jobs:
            for child in psutil.Process(j.pid).children(recursive=True):
                child.kill()
            j.kill()
            j.wait()
    with capsys.disabled():
        print(
            f"\n  a look at 10 jobs of 2 processes: {min(costs) * 1000:.1f} ms, which is {min(costs) / 5:.2%} of a core; 50 jobs: {min(costs):.2%}"
        )
