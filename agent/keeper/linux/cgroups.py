"""Control groups of executions: made before the job, asked who is in them, emptied, removed.
Versions 1 and 2, no daemon, no tool.

Each execution gets `<where the keeper is>/jobscribe-<device and inode of the agent's
folder>/job-<name of the execution>`, so a later keeper knows them by name, and nothing outside a
folder with both names is ever touched. Version 1 where its freezer may be used: the job's shell
moves itself in, by `tasks`, which takes no lock and 0.1 ms. Else version 2: the shell is made right
inside (see `keeping.spawning`), because moving in would cost up to 15 ms there. Where none may be
made there are none. Standard library only: the keeper lives on this.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal

from ....runtime import processes
from .cgroup_mounts import is_delegated, mounts, own_paths, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FAMILY, _JOB = "jobscribe-", "job-"
AUTO, V1, V2, OFF = "auto", "v1", "v2", "off"


class Cgroup:
    """One execution's. `folder` tells who is in it and ends them; `memory` counts kills for want of
    memory, if there is such a one.
    """

    __slots__ = ("folder", "memory", "name", "others", "version")

    def __init__(
        self, name: str, version: int, folder: str, memory: str | None, others: tuple[str, ...] = ()
    ) -> None:
        self.name, self.version, self.folder, self.memory, self.others = (
            name,
            version,
            folder,
            memory,
            others,
        )

    def said(self) -> dict[str, Any]:
        """The form in which the next keeper finds it."""
        return {
            "version": self.version,
            "folder": self.folder,
            "memory": self.memory,
            "others": list(self.others),
        }

    def pids(self) -> list[int]:
        """Who is in it. Raises OSError where that cannot be told though it is there."""
        out: list[int] = []
        for folder in _tree(self.folder):
            try:
                data = read(f"{folder}/cgroup.procs")
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                data = read(f"{folder}/cgroup.threads")  # the job made it one of threads
            out += [int(pid) for pid in data.split() if pid != b"0"]  # 0: of another pid namespace
        return out

    def threads(self) -> list[int]:
        """Numbers of all threads in it itself, processes' own included. Raises OSError."""
        return [
            int(n)
            for n in read(
                f"{self.folder}/{'tasks' if self.version == 1 else 'cgroup.threads'}"
            ).split()
        ]

    def entry(self) -> str:
        """The line of sh with which the shell that reads it moves in; it does nothing where the
        cgroup is gone. No fork before it.
        """
        files = [f"{d}/{'tasks' if self.version == 1 else 'cgroup.procs'}" for d in self._folders()]
        return "{ " + " ".join(f"echo 0 >{_quoted(f)};" for f in files) + " } 2>/dev/null\n"

    def kill(self) -> bool:
        """SIGKILL to all of it at once; False where it takes another look to be sure that nobody
        forked away.
        """
        if self.version == 2:
            with contextlib.suppress(OSError):  # kernels before 5.14 have none
                _write(f"{self.folder}/cgroup.kill", b"1")
                return True
        self._freeze(True)
        try:
            for pid in self.pids():
                ticks = processes.start_ticks(pid)
                if ticks is not None:
                    processes.send_signal(pid, ticks, signal.SIGKILL)
        finally:
            self._freeze(False)
        return False

    def thaw(self) -> None:
        """An earlier keeper may have been killed between freezing and thawing."""
        self._freeze(False)

    def out_of_memory_kills(self) -> int | None:
        """How many processes of it the kernel killed for want of memory; None where nobody counts
        that.
        """
        if self.memory is None or self.version == 2:
            return oom_kills(self.memory)
        counts = [
            oom_kills(folder) for folder in _tree(self.memory)
        ]  # version 1 counts for each folder alone
        return sum(c for c in counts if c is not None) if counts[:1] != [None] else None

    def limit_memory(self, size: int) -> bool:
        """All of it together may have so many bytes, swapped ones included; False where nobody
        counts that. Raises OSError.
        """
        if self.memory is None:
            return False
        limit, swap, nothing = {
            1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", size),
            2: ("memory.max", "memory.swap.max", 0),
        }[self.version]
        _write(f"{self.memory}/{limit}", str(size).encode())
        with contextlib.suppress(OSError):  # not every kernel counts what is swapped
            _write(f"{self.memory}/{swap}", str(nothing).encode())
        return True

    def remove(self) -> bool:
        """Take it away; False while somebody is in it."""
        for folder in self._folders():
            try:
                for below in reversed(_tree(folder)):  # a job may make some of its own
                    os.rmdir(below)
            except FileNotFoundError:
                pass
            except OSError:
                return False
        return True

    def _folders(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys((*self.others, *([self.memory] if self.memory else []), self.folder))
        )

    def _freeze(self, on: bool) -> None:
        with contextlib.suppress(OSError):  # gone, or there is no freezer: killing goes on without
            if self.version == 1:
                _write(f"{self.folder}/freezer.state", b"FROZEN" if on else b"THAWED")
            else:
                _write(f"{self.folder}/cgroup.freeze", b"1" if on else b"0")


class Cgroups:
    """Makes them, if that may be done here; `state` says in words what is the case.

    wanted: "auto", "v1", "v2" or "off". pids: how many processes (and threads) an execution may
    have; 0: as many as it likes. earlier: `families` of an earlier keeper of the same agent, which
    may have been elsewhere; what it left is taken away, too.
    """

    def __init__(
        self, folder: str, wanted: str = AUTO, pids: int = 0, earlier: object = None
    ) -> None:
        there = os.stat(folder)
        self._family = f"{_FAMILY}{there.st_dev:x}-{there.st_ino:x}"
        self._pids, self._wanted = pids, wanted
        self._version = 0
        #: this keeper's families by controller; "" is the one that tells who is in it
        self._families: dict[str, str] = {}
        #: the kernel's counter of the cgroup that this process is in
        self.around: str | None = None
        #: can a process be made inside one? (found out by trying)
        self.born_inside = True
        self.state = "not wanted"
        with contextlib.suppress(OSError):
            self._look_around(wanted)
        self._earlier = [
            p for p in _list(earlier) if self._is_family(p) and p not in self._families.values()
        ]

    @property
    def families(self) -> list[str]:
        """The folders that all its cgroups are in."""
        return [*dict.fromkeys(self._families.values()), *self._earlier]

    def make(self, name: str) -> Cgroup | None:
        """One for this execution, empty; None where there are none. Raises OSError where making one
        fails all of a sudden.
        """
        if not self._families:
            return None
        try:
            return self._made(name)
        except FileNotFoundError:
            # systemd takes what is empty below a unit's cgroup away when it starts the unit again,
            # this keeper's families too
            self._families = {}
            self._look_around(self._wanted)
            if not self._families:  # said by who asked; from now on there are none
                raise
            return self._made(name)

    def found(self, name: str, said: object) -> Cgroup | None:
        """That of an execution which an earlier keeper started, from what that one noted, or by its
        name. None where it is gone.

        Notes can be a job's forgery: only what bears the names of this agent's and of this
        execution counts.
        """
        if isinstance(said, dict):
            paths = [said.get("folder"), said.get("memory"), *_list(said.get("others"))]
            if (
                all(p is None or self._is_ours(p, name) for p in paths)
                and said.get("folder")
                and said.get("version") in (1, 2)
            ):
                noted = Cgroup(
                    name,
                    said["version"],
                    said["folder"],
                    said.get("memory"),
                    tuple(_list(said.get("others"))),
                )
                if os.path.isdir(noted.folder):
                    return noted
        if not self._families:
            return None
        here = self._named(name)
        return here if os.path.isdir(here.folder) else None

    def left(self) -> list[Cgroup]:
        """All that are there now, whoever made them."""
        names: dict[str, None] = {}
        for family in set(self._families.values()):
            with contextlib.suppress(OSError):
                names |= {
                    n.removeprefix(_JOB): None for n in os.listdir(family) if n.startswith(_JOB)
                }
        strays = [
            Cgroup(
                n.removeprefix(_JOB), 1 if os.path.exists(f"{f}/{n}/tasks") else 2, f"{f}/{n}", None
            )
            for f in self._earlier
            if os.path.isdir(f)
            for n in os.listdir(f)
            if n.startswith(_JOB)
        ]
        return [*(self._named(name) for name in names), *strays]

    def name_of(self, pid: int) -> str | None:
        """The execution in whose cgroup this process is."""
        if not self._families:
            return None
        with contextlib.suppress(OSError):
            for line in read(f"/proc/{pid}/cgroup").splitlines():
                parts = os.fsdecode(line).split("/")
                if self._family in parts[:-1]:
                    below = parts[parts.index(self._family) + 1]
                    return below.removeprefix(_JOB) if below.startswith(_JOB) else None
        return None

    def close(self) -> None:
        """Take the families away, as far as they are empty."""
        for cgroup in self.left():
            cgroup.remove()
        for family in self.families:
            with contextlib.suppress(OSError):
                os.rmdir(family)

    # ---- inside

    def _made(self, name: str) -> Cgroup:
        cgroup = self._named(name)
        for folder in cgroup._folders():
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o755)
        if self._pids and "pids" in self._families:
            _write(f"{self._families['pids']}/{_JOB}{name}/pids.max", str(self._pids).encode())
        return cgroup

    def _named(self, name: str) -> Cgroup:
        where = {k: f"{family}/{_JOB}{name}" for k, family in self._families.items()}
        others = tuple(v for k, v in where.items() if k not in ("", "memory"))
        return Cgroup(name, self._version, where[""], where.get("memory"), others)

    def _is_ours(self, path: object, name: str) -> bool:
        return (
            isinstance(path, str)
            and os.path.basename(path) == _JOB + name
            and self._is_family(os.path.dirname(path))
        )

    def _is_family(self, path: object) -> bool:
        if not isinstance(path, str) or "/../" in path or os.path.basename(path) != self._family:
            return False
        return any(path.startswith(f"{m.point}/") for m in mounts())

    def _look_around(self, wanted: str) -> None:
        own, all_ = own_paths(), mounts()
        there = {
            c: d
            for m in all_
            if m.version == 1
            for c in m.controllers
            if (d := m.folder(own.get(c)))
        }
        unified = next((d for m in all_ if m.version == 2 and (d := m.folder(own.get("")))), None)
        self.around = there.get("memory") or unified
        if wanted == OFF:
            return
        reasons = []
        for version, usable in ((1, there if "freezer" in there else None), (2, unified)):
            if wanted not in (AUTO, f"v{version}"):
                continue
            try:
                if usable is None:
                    raise FileNotFoundError(
                        errno.ENOENT,
                        ("there is no freezer of version 1", "there is none of version 2")[
                            version - 1
                        ],
                    )
                self._families = (
                    self._version_1(there) if version == 1 else self._version_2(str(unified))
                )
            except OSError as error:
                reasons.append(f"v{version}: {error.strerror}")
                continue
            self._version = version
            counted = "memory" in self._families
            self.state = f"v{version}" + (
                "" if counted else ", without a count of memory of their own"
            )
            return
        self.state = "none may be made (" + "; ".join(reasons) + ")"

    def _version_1(self, there: dict[str, str]) -> dict[str, str]:
        """The freezer, which tells who is in it; memory, which counts; pids, where a limit is
        wanted. More than the freezer is luck.
        """
        families = {"": f"{there['freezer']}/{self._family}"}
        with contextlib.suppress(FileExistsError):
            os.mkdir(families[""])
        for controller in ("memory", *(["pids"] if self._pids else [])):
            family = f"{there.get(controller)}/{self._family}"
            with contextlib.suppress(OSError):
                if controller in there:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(family)
                    families[controller] = family
        return families

    def _version_2(self, own: str) -> dict[str, str]:
        """Below where this process is; beside it, where a unit was delegated with a subgroup for
        its service.

        Only beside it can memory be counted: where processes are, nothing below has controllers.
        """
        above = os.path.dirname(own)
        home = above if is_delegated(above) and not read(f"{above}/cgroup.procs").split() else own
        family = f"{home}/{self._family}"
        if home == own:
            with contextlib.suppress(FileExistsError):
                os.mkdir(family)
        for folder in (home, family) if home != own else (family,):
            if folder == family:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(family)
            for controller in (b"memory", b"pids"):
                with contextlib.suppress(OSError):  # not delegated, or somebody is in there
                    if controller in read(f"{folder}/cgroup.controllers").split():
                        _write(f"{folder}/cgroup.subtree_control", b"+" + controller)
        enabled = read(f"{family}/cgroup.subtree_control").split()
        return {"": family} | {c: family for c in ("memory", "pids") if c.encode() in enabled}


def of_process(pid: int, name: str) -> Cgroup | None:
    """The cgroup of this execution where this process is in it, by the kernel's word."""
    with contextlib.suppress(OSError):
        for line in os.fsdecode(read(f"/proc/{pid}/cgroup")).splitlines():
            _, controllers, path = line.split(":", 2)
            family, inside, _ = f"{path}/".partition(f"/{_JOB}{name}/")
            for m in mounts() if inside and os.path.basename(family).startswith(_FAMILY) else []:
                folder = m.folder(family + inside[:-1])
                if folder is not None and (
                    controllers.split(",")[0] in m.controllers if controllers else m.version == 2
                ):
                    return Cgroup(name, m.version, folder, None)
    return None


def oom_kills(folder: str | None) -> int | None:
    """The kernel's counter in this cgroup (version 2: in those below as well); None where there is
    none.
    """
    if folder is None:
        return None
    for file in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError):
            return _counter(read(f"{folder}/{file}"))
    return None


def machine_oom_kills() -> int | None:
    """The same for the whole machine, whoever's process it was."""
    try:
        return _counter(read("/proc/vmstat"))
    except OSError:
        return None


def _counter(text: bytes) -> int | None:
    begin = (b"\n" + text).find(b"\noom_kill ")
    return int(text[begin + 9 :].split(None, 1)[0]) if begin >= 0 else None


# ---- where they are mounted


def _tree(folder: str) -> list[str]:
    """It and all below it, parents first. (A folder of this file system has two links more than
    folders in it.)
    """
    out = [folder]
    for there in out:  # grows while it is walked
        with contextlib.suppress(OSError):
            if os.stat(there).st_nlink > 2:
                out += [
                    entry.path for entry in os.scandir(there) if entry.is_dir(follow_symlinks=False)
                ]
    return out


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
