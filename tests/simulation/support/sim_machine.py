"""The machines where everything runs: their disks, processes, ports and boots. Kept by themselves,
so that they witness against all books.

The supervisor is on the first of them, HOME; each has its own boots and its own monotonic clock.
"""

import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from sim_keeper import Disk, Keeper
from sim_time import Action, Time

from jobscribe.protocol.ids import AgentKey

if TYPE_CHECKING:
    from sim_agent import Agent
    from sim_slurm import Slurm

#: What was written longer ago than this (seconds) survives a power cut although nobody synced it.
SETTLED_SECS = 5.0
HOME, OTHER = "localhost", "other"


class Process(msgspec.Struct):
    """One real execution, as the machine itself knows it. on_term: what it does when it is told to
    end.
    """

    token: str
    pid: int
    host: str
    boot: int
    started: float
    code: int
    on_term: str
    limit: float | None
    #: it listens on these
    ports: tuple[int, ...] = ()
    ended: float | None = None
    signal: int | None = None
    #: what its script wrote down as its exit: a code, or 128 + a signal
    written: int | None = None
    #: who is told of its end besides keepers
    on_end: Callable[[], None] | None = None

    @property
    def jid(self) -> str:
        return self.token.split("/")[0]

    @property
    def gang(self) -> str:
        """What it has in common with the other tasks of its attempt."""
        return self.token.rsplit("/", 2)[0]

    @property
    def truth(self) -> tuple[int | None, int | None]:
        return (self.code, None) if self.signal is None else (None, self.signal)


class Host:
    """One machine: its boots, and what was written there without a sync."""

    def __init__(self, time: Time, name: str) -> None:
        self.time, self.name = time, name
        self.boot = 1
        self.booted_at = 0.0
        #: ports that somebody else listens on
        self.strangers: set[int] = set()
        self.journal: deque[tuple[float, Action]] = deque()

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}" if self.name == HOME else f"boot-{self.name}-{self.boot}"

    @property
    def mono(self) -> float:
        return self.time.now - self.booted_at

    def wrote(self, undo: Action) -> None:
        """Something was written without a sync; this takes it back."""
        self.journal.append((self.time.now, undo))
        while self.journal[0][0] < self.time.now - SETTLED_SECS:
            self.journal.popleft()

    def power_cut(self) -> None:
        """The end of what was written and not synced may be gone."""
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
    """One keeper a key at most, as its lock has it. broken: called with a sentence when a guarantee
    is.
    """

    def __init__(
        self, time: Time, broken: Callable[[str], None], new_agent: "Callable[[Keeper], Agent]"
    ) -> None:
        self.time, self._broken, self.new_agent = time, broken, new_agent
        self.hosts: dict[str, Host] = {}
        self.disks: dict[AgentKey, Disk] = {}
        self.processes: dict[int, Process] = {}
        self.by_token: dict[str, Process] = {}
        #: those that live, by token
        self.live: dict[str, Process] = {}
        #: told of each that starts
        self.on_spawn: Callable[[Process], None] = lambda process: None
        self.keepers: dict[AgentKey, Keeper] = {}
        #: that live, with those whose keeper died and that do not know it yet
        self.agents: list[Agent] = []
        self.connect: Callable[[Any], Any] = lambda agent: None
        #: clusters, by the names of the hosts of their agents
        self.slurms: dict[str, Slurm] = {}
        #: hosts that the driver cannot ask
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
        """As the driver does it: who is there already stays, with the token that it has."""
        keeper = self.keepers.get(key)
        if keeper is None or keeper.life.over:
            keeper = self.keepers[key] = Keeper(self, key, self.new_pid(), config)
            keeper.start()
        else:
            self.time.saw("a start found a keeper that lived")
        return {"pid": keeper.pid, "bootId": keeper.host.boot_id}

    def keeper_of(self, key: AgentKey, handle: dict[str, Any]) -> Keeper | None:
        """The live keeper that this handle names."""
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
        """Its command: what, how it ends, its length in seconds, how it takes SIGTERM. Here is
        where a double start shows.

        How it ends, and after how long: one of those that are named, by its token; `s` and a number
        is a signal.
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
            self.time.after(secs, lambda: self.kill(p, int(end[1:]), with_script=False))
        else:
            p.code = int(end)
            self.time.after(secs, lambda: self.exits(p, p.code))
        return p

    def of_job(self, jid: str) -> list[Process]:
        """Its processes that live."""
        return [p for p in self.live.values() if p.jid == jid]

    def busy_ports(self, host: str, ports: Iterable[int]) -> tuple[int, ...]:
        """Those of these that somebody listens on."""
        taken = self.host(host).strangers.union(
            *(p.ports for p in self.live.values() if p.host == host)
        )
        return tuple(sorted(taken.intersection(ports)))

    def exits(self, p: Process, code: int) -> None:
        """By itself; its script notes the code."""
        if p.ended is None:
            p.code = code
            self._write_exit(p, code)
            self._over(p, None)

    def kill(self, p: Process, signal: int, *, with_script: bool) -> None:
        """with_script: the script, which would have noted how its command ended, is hit as well."""
        if p.ended is None:
            if not with_script:
                self._write_exit(p, 128 + signal)
            self._over(p, signal)

    def terminate(self, p: Process) -> None:
        """SIGTERM to all of it; its script lives on until it has noted how its command ended."""
        r = self.time.random
        match p.on_term:
            case "dies":
                self.time.after(0.2 * r.random(), lambda: self.kill(p, 15, with_script=False))
            case "exits":
                self.time.after(0.2 * r.random(), lambda: self.exits(p, 0))
            case _:
                pass

    def _write_exit(self, p: Process, written: int) -> None:
        p.written = written
        self.host(p.host).wrote(lambda: setattr(p, "written", None))

    def _over(self, p: Process, signal: int | None) -> None:
        p.ended, p.signal = self.time.now, signal
        del self.live[p.token]
        self.time.say("machine: pid", p.pid, "ended", p.truth)
        if p.on_end is not None:
            p.on_end()
        for keeper in self.live_keepers():
            keeper.life.after(0.0, lambda keeper=keeper: keeper.process_ended(p))

    # ---- the power

    def reboot(self, name: str = HOME) -> None:
        """Power off, power on: all processes there are gone."""
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
            p.ended, p.signal = self.time.now, 9
            del self.live[p.token]
        host.power_cut()


def _one_of(words: str, chance: int) -> str:
    """One of those that commas part."""
    each = words.split(",")
    return each[chance % len(each)]
