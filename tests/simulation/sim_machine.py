"""The machine where everything runs: its disk, its processes, its boots. Kept by itself, so that it is the witness against all books."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from sim_keeper import Disk, Keeper
from sim_time import Action, Time

from jobscribe.protocol.ids import AgentKey

if TYPE_CHECKING:
    from sim_agent import Agent

#: What was written longer ago than this (seconds) survives a power cut although nobody synced it.
SETTLED_SECS = 5.0


class Process(msgspec.Struct):
    """One real execution, as the machine itself knows it. on_term: what it does when it is told to end."""

    token: str
    pid: int
    boot: int
    started: float
    code: int
    on_term: str
    limit: float | None
    ended: float | None = None
    signal: int | None = None
    #: what its script wrote down as its exit: a code, or 128 + a signal
    written: int | None = None

    @property
    def jid(self) -> str:
        return self.token.split("/")[0]

    @property
    def truth(self) -> tuple[int | None, int | None]:
        return (self.code, None) if self.signal is None else (None, self.signal)


class Machine:
    """One keeper a key at most, as its lock has it. broken: called with a sentence when a guarantee is."""

    def __init__(self, time: Time, broken: Callable[[str], None], new_agent: "Callable[[Keeper], Agent]") -> None:
        self.time, self._broken, self.new_agent = time, broken, new_agent
        self.boot = 1
        self.booted_at = 0.0
        self.disks: dict[AgentKey, Disk] = {}
        self.processes: dict[int, Process] = {}
        self.by_token: dict[str, Process] = {}
        #: live processes by computeJid
        self.live: dict[str, Process] = {}
        self.keepers: dict[AgentKey, Keeper] = {}
        #: that live, with those whose keeper died and that do not know it yet
        self.agents: list[Agent] = []
        self.connect: Callable[[Any], Any] = lambda agent: None
        self._journal: deque[tuple[float, Action]] = deque()
        self._pid = 100

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    @property
    def mono(self) -> float:
        return self.time.now - self.booted_at

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
        return {"pid": keeper.pid, "bootId": self.boot_id}

    def keeper_of(self, key: AgentKey, handle: dict[str, Any]) -> Keeper | None:
        """The live keeper that this handle names."""
        keeper = self.keepers.get(key)
        return keeper if keeper is not None and not keeper.life.over and keeper.pid == handle["pid"] else None

    def live_keepers(self) -> list[Keeper]:
        return [k for k in self.keepers.values() if not k.life.over]

    def live_agents(self) -> "list[Agent]":
        self.agents = [a for a in self.agents if not a.life.over]
        return self.agents

    # ---- processes

    def spawn(self, token: str, command: tuple[str, ...], limit: float | None) -> Process:
        """command: what, its exit code, its length in seconds, how it takes SIGTERM. Here is where a double start shows."""
        _, code, secs, on_term = command
        p = Process(
            token=token, pid=self.new_pid(), boot=self.boot, started=self.time.now, code=int(code), on_term=on_term, limit=limit,
        )
        if token in self.by_token:
            self._broken(f"G2: {token} was started twice")
        if p.jid in self.live:
            self._broken(f"G2: {token} was started while {self.live[p.jid].token} lives")
        self.processes[p.pid] = self.by_token[token] = self.live[p.jid] = p
        self.time.say("machine: pid", p.pid, "is", token)
        self.time.after(float(secs), lambda: self.exits(p, p.code))
        return p

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
        self.wrote(lambda: setattr(p, "written", None))

    def _over(self, p: Process, signal: int | None) -> None:
        p.ended, p.signal = self.time.now, signal
        del self.live[p.jid]
        self.time.say("machine: pid", p.pid, "ended", p.truth)
        for keeper in self.live_keepers():
            keeper.life.after(0.0, lambda keeper=keeper: keeper.process_ended(p))

    # ---- the disk and the power

    def wrote(self, undo: Action) -> None:
        """Something was written without a sync; this takes it back."""
        self._journal.append((self.time.now, undo))
        while self._journal[0][0] < self.time.now - SETTLED_SECS:
            self._journal.popleft()

    def reboot(self) -> None:
        """Power off, power on: all processes are gone, and the end of what was written and not synced may be."""
        if self.live:
            self.time.saw("the machine was rebooted while jobs ran")
        for keeper in self.live_keepers():
            keeper.life.end()
        for agent in self.live_agents():
            agent.vanish()
        for p in list(self.live.values()):
            p.ended, p.signal = self.time.now, 9
            del self.live[p.jid]
        unsettled = [undo for at, undo in self._journal if at > self.time.now - SETTLED_SECS]
        lost = self.time.random.randint(0, len(unsettled))
        for undo in reversed(unsettled[len(unsettled) - lost :]):
            undo()
        if lost:
            self.time.saw("a power cut took what was not synced")
        self._journal.clear()
        self.boot += 1
        self.booted_at = self.time.now - 1.0

    def dead_by_power(self, p: Process) -> bool:
        return p.boot != self.boot

