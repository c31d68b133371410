"""Control groups of executions: created before the job, listed, killed and removed.

Works with versions 1 and 2, without a daemon or tool. Each execution gets
`<cgroup of the keeper>/jobscribe-<device and inode of the agent's folder>/job-<execution>`. A later
keeper finds it by these names, and folders without both names are never touched. Between two short
executions, a cgroup of version 1 is named `spare-<number>` (see `spare_cgroups`).

Version 1 is used if its freezer is writable: a thread enters it by `tasks` and creates the process
there (see `spawning_thread`), which takes no lock and 0.1 ms. Otherwise version 2: the process is created inside
(see `spawn`), because moving would cost up to 15 ms. If neither is allowed, executions have no cgroup. Standard library
only, as the keeper imports it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal

from ....runtime import processes
from .cgroup_mounts import is_delegated, mounts, own_paths, read
from .spare_cgroups import SpareCgroups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .spare_cgroups import CgroupFiles

_FAMILY, _JOB, _SPARE = "jobscribe-", "job-", "spare-"
AUTO, V1, V2, OFF = "auto", "v1", "v2", "off"


class Cgroup:
    """The cgroup of one execution. `folder` lists and kills its processes; `memory` is the folder
    that counts out-of-memory kills, or None. files: set if it may be used again.
    """

    __slots__ = ("files", "folder", "memory", "name", "others", "version")

    def __init__(
        self, name: str, version: int, folder: str, memory: str | None, others: tuple[str, ...] = ()
    ) -> None:
        self.files: CgroupFiles | None = None
        self.name, self.version, self.folder, self.memory, self.others = (
            name,
            version,
            folder,
            memory,
            others,
        )

    def record(self) -> dict[str, Any]:
        """Return the stored form for the next keeper."""
        return {
            "version": self.version,
            "folder": self.folder,
            "memory": self.memory,
            "others": list(self.others),
        }

    def pids(self) -> list[int]:
        """Return the pids in the cgroup. Raises OSError if they cannot be read although the cgroup
        exists.
        """
        out: list[int] = []
        for folder in _tree(self.folder):
            try:
                data = read(f"{folder}/cgroup.procs")
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                data = read(f"{folder}/cgroup.threads")  # the job made it a threaded cgroup
            out += [int(pid) for pid in data.split() if pid != b"0"]  # 0: of another pid namespace
        return out

    def threads(self) -> list[int]:
        """Return the ids of all threads in the cgroup, without child cgroups. Raises OSError."""
        return [
            int(n)
            for n in read(
                f"{self.folder}/{'tasks' if self.version == 1 else 'cgroup.threads'}"
            ).split()
        ]

    def use_once(self) -> None:
        """Do not use it again."""
        if self.files is not None:
            self.files.close()
            self.files = None

    def entries(self) -> list[str]:
        """Return the files through which a process enters the cgroup, by writing 0."""
        file = "tasks" if self.version == 1 else "cgroup.procs"
        return [f"{folder}/{file}" for folder in self._folders()]

    def kill(self) -> bool:
        """Send SIGKILL to all processes at once.

        Returns False if a process may have escaped by forking, so that another round is needed.
        """
        if self.version == 2:
            with contextlib.suppress(OSError):  # kernels before 5.14 lack it
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
        """Thaw the cgroup. An earlier keeper may have been killed between freezing and thawing."""
        self._freeze(False)

    def out_of_memory_kills(self) -> int | None:
        """Return how many processes of the cgroup were killed for lack of memory; None if not
        counted.
        """
        if self.memory is None or self.version == 2:
            return oom_kills(self.memory)
        # version 1 counts each folder separately
        counts = [oom_kills(folder) for folder in _tree(self.memory)]
        return sum(c for c in counts if c is not None) if counts[:1] != [None] else None

    def limit_memory(self, size: int) -> bool:
        """Limit the cgroup's memory, swap included, to `size` bytes.

        Returns False if memory is not controlled here. Raises OSError.
        """
        if self.memory is None:
            return False
        limit, swap, nothing = {
            1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", size),
            2: ("memory.max", "memory.swap.max", 0),
        }[self.version]
        _write(f"{self.memory}/{limit}", str(size).encode())
        with contextlib.suppress(OSError):  # not every kernel counts swap
            _write(f"{self.memory}/{swap}", str(nothing).encode())
        return True

    def remove(self) -> bool:
        """Remove the cgroup; return False while a process is in it."""
        self.use_once()
        for folder in self._folders():
            try:
                for below in reversed(_tree(folder)):  # a job may create child cgroups
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
        with contextlib.suppress(OSError):  # removed, or there is no freezer: kill without it
            if self.version == 1:
                _write(f"{self.folder}/freezer.state", b"FROZEN" if on else b"THAWED")
            else:
                _write(f"{self.folder}/cgroup.freeze", b"1" if on else b"0")


class Cgroups:
    """Creates cgroups if allowed; `state` describes whether and which.

    wanted: "auto", "v1", "v2" or "off". pids: limit of processes and threads of an execution, 0:
    none. earlier: `families` of an earlier keeper of this agent, which may have been in another
    cgroup; cgroups left there are removed as well.
    """

    def __init__(
        self, folder: str, wanted: str = AUTO, pids: int = 0, earlier: object = None
    ) -> None:
        status = os.stat(folder)
        self._family = f"{_FAMILY}{status.st_dev:x}-{status.st_ino:x}"
        self._pids, self._wanted = pids, wanted
        self._spares = SpareCgroups(_SPARE)
        self._version = 0
        #: family folder by controller; "" is the one that lists processes
        self._families: dict[str, str] = {}
        #: folder with the kernel's memory counters of this process's own cgroup
        self.around: str | None = None
        #: processes can be created inside a cgroup (found out by trying)
        self.can_spawn_inside = True
        self.state = "not wanted"
        with contextlib.suppress(OSError):
            self._detect(wanted)
        self._earlier = [
            p for p in _list(earlier) if self._is_family(p) and p not in self._families.values()
        ]

    @property
    def own_entries(self) -> list[str] | None:
        """Return the files through which a thread returns to the cgroups of this process. None if a
        thread must not enter those of executions: with version 2 it cannot, and a limit of threads
        would count it.
        """
        if self._version != 1 or "pids" in self._families:
            return None
        return [f"{os.path.dirname(family)}/tasks" for family in self._families.values()]

    @property
    def families(self) -> list[str]:
        """Return the folders that contain all its cgroups."""
        return [*dict.fromkeys(self._families.values()), *self._earlier]

    def make(self, name: str, *, new: bool = True) -> Cgroup | None:
        """Create the empty cgroup of this execution; return None if there are no cgroups.

        new: False if it may be that of an earlier execution, and be used again. Raises OSError if
        creation worked before and fails now.
        """
        if not self._families:
            return None
        try:
            return self._create(name) if new else self._taken(name) or self._create(name, new=False)
        except FileNotFoundError:
            # systemd removes empty cgroups below a unit when it restarts the unit, also this
            # keeper's families
            self._families = {}
            self._detect(self._wanted)
            if not self._families:  # logged by the caller; no more cgroups are created
                raise
            return self._create(name)

    def keep(self, cgroup: Cgroup) -> bool:
        """Keep the cgroup of an ended execution for the next one, if that can use it."""
        return (
            cgroup.files is not None
            and cgroup.memory is not None
            and self._spares.give(cgroup.folder, cgroup.memory, cgroup.files)
        )

    def find(self, name: str, record: object) -> Cgroup | None:
        """Return the cgroup of an execution that an earlier keeper started, from its record or by
        name. None if it is gone.

        A job can forge the record: only paths with the names of this agent and execution count.
        """
        if isinstance(record, dict):
            paths = [record.get("folder"), record.get("memory"), *_list(record.get("others"))]
            if (
                all(p is None or self._is_ours(p, name) for p in paths)
                and record.get("folder")
                and record.get("version") in (1, 2)
            ):
                noted = Cgroup(
                    name,
                    record["version"],
                    record["folder"],
                    record.get("memory"),
                    tuple(_list(record.get("others"))),
                )
                if os.path.isdir(noted.folder):
                    return noted
        if not self._families:
            return None
        here = self._cgroup_named(name)
        return here if os.path.isdir(here.folder) else None

    def existing(self) -> list[Cgroup]:
        """Return all existing cgroups of this agent's executions."""
        folders: dict[str, None] = {}
        for family in set(self._families.values()):
            with contextlib.suppress(OSError):
                folders |= {n: None for n in os.listdir(family) if n.startswith((_JOB, _SPARE))}
        strays = [
            Cgroup(
                n.removeprefix(_JOB), 1 if os.path.exists(f"{f}/{n}/tasks") else 2, f"{f}/{n}", None
            )
            for f in self._earlier
            if os.path.isdir(f)
            for n in os.listdir(f)
            if n.startswith((_JOB, _SPARE))
        ]
        return [*(self._cgroup_in(n.removeprefix(_JOB), n) for n in folders), *strays]

    def execution_of(self, pid: int) -> str | None:
        """Return the execution in whose cgroup this process is."""
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
        """Remove the families that are empty."""
        for cgroup in self.existing():
            cgroup.remove()
        for family in self.families:
            with contextlib.suppress(OSError):
                os.rmdir(family)

    # ---- inside

    def _taken(self, name: str) -> Cgroup | None:
        cgroup = self._cgroup_named(name)
        if cgroup.memory is not None:
            cgroup.files = self._spares.take(cgroup.folder, cgroup.memory)
        return None if cgroup.files is None else cgroup

    def _create(self, name: str, *, new: bool = True) -> Cgroup:
        cgroup = self._cgroup_named(name)
        for folder in cgroup._folders():
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o755)
        if self._pids and "pids" in self._families:
            _write(f"{self._families['pids']}/{_JOB}{name}/pids.max", str(self._pids).encode())
        if not new and cgroup.memory is not None and self.own_entries is not None:
            cgroup.files = self._spares.opened(cgroup.folder, cgroup.memory)
        return cgroup

    def _cgroup_named(self, name: str) -> Cgroup:
        return self._cgroup_in(name, _JOB + name)

    def _cgroup_in(self, name: str, folder: str) -> Cgroup:
        where = {k: f"{family}/{folder}" for k, family in self._families.items()}
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

    def _detect(self, wanted: str) -> None:
        own, all_ = own_paths(), mounts()
        mounted = {
            c: d
            for m in all_
            if m.version == 1
            for c in m.controllers
            if (d := m.folder(own.get(c)))
        }
        unified = next((d for m in all_ if m.version == 2 and (d := m.folder(own.get("")))), None)
        self.around = mounted.get("memory") or unified
        if wanted == OFF:
            return
        reasons = []
        for version, usable in ((1, mounted if "freezer" in mounted else None), (2, unified)):
            if wanted not in (AUTO, f"v{version}"):
                continue
            try:
                if usable is None:
                    raise FileNotFoundError(
                        errno.ENOENT,
                        ("version 1 has no freezer here", "version 2 is not available here")[
                            version - 1
                        ],
                    )
                self._families = (
                    self._create_v1_families(mounted)
                    if version == 1
                    else self._create_v2_families(str(unified))
                )
            except OSError as error:
                reasons.append(f"v{version}: {error.strerror}")
                continue
            self._version = version
            counted = "memory" in self._families
            self.state = f"v{version}" + (
                "" if counted else ", without memory counters of their own"
            )
            return
        self.state = "cannot be created (" + "; ".join(reasons) + ")"

    def _create_v1_families(self, mounted: dict[str, str]) -> dict[str, str]:
        """Return the families: the freezer lists processes, memory counts, pids limits.

        Only the freezer is required.
        """
        families = {"": f"{mounted['freezer']}/{self._family}"}
        with contextlib.suppress(FileExistsError):
            os.mkdir(families[""])
        for controller in ("memory", *(["pids"] if self._pids else [])):
            family = f"{mounted.get(controller)}/{self._family}"
            with contextlib.suppress(OSError):
                if controller in mounted:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(family)
                    families[controller] = family
        return families

    def _create_v2_families(self, own: str) -> dict[str, str]:
        """Return the families below this process's cgroup, or beside it if a unit was delegated
        with a subgroup for its service.

        Memory can be counted only beside it: a cgroup with processes has no controllers for its
        children.
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
                with contextlib.suppress(OSError):  # not delegated, or it contains processes
                    if controller in read(f"{folder}/cgroup.controllers").split():
                        _write(f"{folder}/cgroup.subtree_control", b"+" + controller)
        enabled = read(f"{family}/cgroup.subtree_control").split()
        return {"": family} | {c: family for c in ("memory", "pids") if c.encode() in enabled}


def cgroup_of_process(pid: int, name: str) -> Cgroup | None:
    """Return the cgroup of this execution if the kernel says that this process is in it."""
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
    """Return the kernel's out-of-memory counter of this cgroup (version 2: children included).

    None if there is none.
    """
    if folder is None:
        return None
    for file in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError):
            return _counter(read(f"{folder}/{file}"))
    return None


def machine_oom_kills() -> int | None:
    """Return the out-of-memory counter of the whole machine."""
    try:
        return _counter(read("/proc/vmstat"))
    except OSError:
        return None


def _counter(text: bytes) -> int | None:
    begin = (b"\n" + text).find(b"\noom_kill ")
    return int(text[begin + 9 :].split(None, 1)[0]) if begin >= 0 else None


def _tree(folder: str) -> list[str]:
    """Return the folder and all below it, parents first.

    A cgroup folder has two more links than child folders.
    """
    out = [folder]
    for child in out:  # grows while it is walked
        with contextlib.suppress(OSError):
            if os.stat(child).st_nlink > 2:
                out += [
                    entry.path for entry in os.scandir(child) if entry.is_dir(follow_symlinks=False)
                ]
    return out


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
