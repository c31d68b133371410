"""The machines: their disks, processes, ports and boots. Their state is independent of the
product's records, so that it can be used to check them.

The supervisor runs on HOME, the first machine. Each machine has its own boots and its own monotonic
clock.
"""

import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from sim_keeper import Keeper
from sim_keeper_disk import Disk
from sim_time import Action, Life, Time

from jobscribe.protocol.execution.lifecycle import Step
from jobscribe.protocol.ids import AgentKey

if TYPE_CHECKING:
    from sim_agent import Agent
    from sim_execution_checks import Executing
    from sim_slurm import Slurm

#: Data written longer ago than this (seconds) survives a power cut even without a sync.
SETTLED_SECS = 5.0
#: A keeper notices the end of a process within this time (seconds).
SEEN_SECS = 0.02
HOME, OTHER = "localhost", "other"


class Process(msgspec.Struct):
    """One real execution, as the machine knows it. on_term: its reaction to SIGTERM."""

    token: str
    pid: int
    host: str
    boot: int
    started: float
    code: int
    on_term: str
    limit: float | None
    #: ports on which it listens
    ports: tuple[int, ...] = ()
    #: its children survive its end and SIGKILL for so long (seconds)
    lingers: float = 0.0
    ended: float | None = None
    #: simulator step of its end
    ended_step: int | None = None
    signal: int | None = None
    #: recorded exit: a code, or 128 + a signal
    written: int | None = None
    #: callback at its end, in addition to the keepers
    on_end: Callable[[], None] | None = None

    @property
    def jid(self) -> str:
        return self.token.split("/")[0]

    @property
    def gang(self) -> str:
        """Return the part of the token that all tasks of one attempt share."""
        return self.token.rsplit("/", 2)[0]

    @property
    def truth(self) -> tuple[int | None, int | None]:
        return (self.code, None) if self.signal is None else (None, self.signal)


class Host:
    """One machine: its boots and its unsynced writes."""

    def __init__(self, time: Time, name: str) -> None:
        self.time, self.name = time, name
        self.boot = 1
        self.booted_at = 0.0
        #: ports on which unrelated processes listen
        self.strangers: set[int] = set()
        self.journal: deque[tuple[float, Action]] = deque()

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}" if self.name == HOME else f"boot-{self.name}-{self.boot}"

    @property
    def mono(self) -> float:
        return self.time.now - self.booted_at

    def wrote(self, undo: Action) -> None:
        """Record an unsynced write and the action that reverts it."""
        self.journal.append((self.time.now, undo))
        while self.journal[0][0] < self.time.now - SETTLED_SECS:
            self.journal.popleft()

    def power_cut(self) -> None:
        """Revert a random number of the latest unsynced writes, and reboot."""
        unsettled = [undo for at, undo in self.journal if at > self.time.now - SETTLED_SECS]
        lost = self.time.random.randint(0, len(unsettled))
        for undo in reversed(unsettled[len(unsettled) - lost :]):
            undo()
        if lost:
            self.time.saw("a power cut took what was not synced")
        self.journal.clear()
        self.boot += 1
        self.booted_at = self.time.now - 1.0


class Machine:
    """All machines. Each key has at most one keeper, as the lock guarantees. broken: called with a
    sentence when a guarantee is broken.
    """

    def __init__(
        self, time: Time, broken: Callable[[str], None], new_agent: "Callable[[Keeper], Agent]"
    ) -> None:
        self.time, self._broken, self.new_agent = time, broken, new_agent
        self.hosts: dict[str, Host] = {}
        self.disks: dict[AgentKey, Disk] = {}
        self.processes: dict[int, Process] = {}
        self.by_token: dict[str, Process] = {}
        #: live processes by token
        self.live: dict[str, Process] = {}
        #: called for each new process
        self.on_spawn: Callable[[Process], None] = lambda process: None
        #: called for a stop of a running execution with its grace period, before a signal, and
        #: after each change of an execution
        self.on_stop: Callable[[Executing, float], None] = lambda *_: None
        self.on_signal: Callable[[Executing, Step, Life], None] = lambda *_: None
        self.on_act: Callable[[Executing], None] = lambda execution: None
        self.keepers: dict[AgentKey, Keeper] = {}
        #: live agents, including those that do not know yet that their keeper died
        self.agents: list[Agent] = []
        self.connect: Callable[[Any], Any] = lambda agent: None
        #: clusters, by the host names of their agents
        self.slurms: dict[str, Slurm] = {}
        #: hosts that the driver cannot reach
        self.out_of_reach: set[str] = set()
        self._pid = 100

    def host(self, name: str) -> Host:
        if name not in self.hosts:
            self.hosts[name] = Host(self.time, name)
        return self.hosts[name]

    @property
    def home(self) -> Host:
        return self.host(HOME)

    def new_pid(self) -> int:
        self._pid += 1
        return self._pid

    # ---- keepers

    def start_keeper(self, key: AgentKey, config: dict[str, str]) -> dict[str, Any]:
        """Start a keeper as the driver does: a live keeper stays, with its token."""
        keeper = self.keepers.get(key)
        if keeper is None or keeper.life.over:
            keeper = self.keepers[key] = Keeper(self, key, self.new_pid(), config)
            keeper.start()
        else:
            self.time.saw("a start found a keeper that lived")
        return {"pid": keeper.pid, "bootId": keeper.host.boot_id}

    def keeper_of(self, key: AgentKey, handle: dict[str, Any]) -> Keeper | None:
        """Return the live keeper that this handle names, or None."""
        keeper = self.keepers.get(key)
        return (
            keeper
            if keeper is not None and not keeper.life.over and keeper.pid == handle["pid"]
            else None
        )

    def live_keepers(self) -> list[Keeper]:
        return [k for k in self.keepers.values() if not k.life.over]

    def live_agents(self) -> "list[Agent]":
        self.agents = [a for a in self.agents if not a.life.over]
        return self.agents

    # ---- processes

    def spawn(self, token: str, host: Host, order: dict[str, Any]) -> Process:
        """Start a process; detect double starts. The command gives a name, the kind of end, the
        duration in seconds and the reaction to SIGTERM.

        The token chooses one of the given ends and durations; `s` and a number is a signal.
        """
        _, ends, lengths, on_term = order["command"]
        chance = zlib.crc32(token.encode())
        end, secs = _one_of(ends, chance), float(_one_of(lengths, chance // 7))
        p = Process(
            token=token,
            pid=self.new_pid(),
            host=host.name,
            boot=host.boot,
            started=self.time.now,
            code=0,
            on_term=on_term,
            limit=order["limit"],
            ports=tuple(order.get("ports", ())),
            lingers=order.get("lingers", 0.0),
        )
        if token in self.by_token:
            self._broken(f"G2: {token} was started twice")
        others = [q.token for q in self.of_job(p.jid) if q.gang != p.gang]
        if others:
            self._broken(f"G2: {token} was started while {others[0]} lives")
        self.processes[p.pid] = self.by_token[token] = self.live[token] = p
        self.time.say("machine: pid", p.pid, "on", host.name, "is", token)
        self.on_spawn(p)
        if end.startswith("s"):
            self.time.after(secs, lambda: self.kill(p, int(end[1:]), with_recorder=False))
        else:
            p.code = int(end)
            self.time.after(secs, lambda: self.exits(p, p.code))
        return p

    def of_job(self, jid: str) -> list[Process]:
        """Return the live processes of a job."""
        return [p for p in self.live.values() if p.jid == jid]

    def busy_ports(self, host: str, ports: Iterable[int]) -> tuple[int, ...]:
        """Return those of the ports that are in use."""
        taken = self.host(host).strangers.union(
            *(p.ports for p in self.live.values() if p.host == host)
        )
        return tuple(sorted(taken.intersection(ports)))

    def exits(self, p: Process, code: int) -> None:
        """Let the process exit by itself; the code is recorded."""
        if p.ended is None:
            p.code = code
            self._write_exit(p, code)
            self._over(p, None)

    def kill(self, p: Process, signal: int, *, with_recorder: bool) -> None:
        """with_recorder: also kill its children and what would otherwise record the end: a keeper's
        reaper, or the script of a batch job.
        """
        if p.ended is None:
            if with_recorder:
                p.lingers = 0.0
            else:
                self._write_exit(p, 128 + signal)
            self._over(p, signal)

    def terminate(self, p: Process) -> None:
        """Send SIGTERM to all its processes. The end is recorded."""
        r = self.time.random
        match p.on_term:
            case "dies":
                self.time.after(0.2 * r.random(), lambda: self.kill(p, 15, with_recorder=False))
            case "exits":
                self.time.after(0.2 * r.random(), lambda: self.exits(p, 0))
            case _:
                pass

    def _write_exit(self, p: Process, written: int) -> None:
        p.written = written
        self.host(p.host).wrote(lambda: setattr(p, "written", None))

    def is_left(self, p: Process | None) -> bool:
        """Return whether children of an ended process are left."""
        return p is not None and p.ended is not None and self.time.now < p.ended + p.lingers

    def _over(self, p: Process, signal: int | None) -> None:
        p.ended, p.signal, p.ended_step = self.time.now, signal, self.time.steps
        del self.live[p.token]
        self.time.say("machine: pid", p.pid, "ended", p.truth)
        if p.on_end is not None:
            p.on_end()
        for keeper in self.live_keepers():
            late = 0.0 if self.time.calm else SEEN_SECS * self.time.random.random()
            keeper.life.after(late, lambda keeper=keeper: keeper.process_ended(p))

    # ---- power

    def reboot(self, name: str = HOME) -> None:
        """Power the host off and on: all its processes are gone."""
        host = self.host(name)
        if any(p.host == name for p in self.live.values()):
            self.time.saw("the machine was rebooted while jobs ran")
        for keeper in self.live_keepers():
            if keeper.host is host:
                keeper.life.end()
        for agent in self.live_agents():
            if agent.keeper.host is host:
                agent.vanish()
        for p in [p for p in self.live.values() if p.host == name]:
            p.ended, p.signal, p.ended_step = self.time.now, 9, self.time.steps
            del self.live[p.token]
        host.power_cut()


def _one_of(words: str, chance: int) -> str:
    """Choose one of the words between commas."""
    each = words.split(",")
    return each[chance % len(each)]
