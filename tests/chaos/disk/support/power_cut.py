"""A simulated disk that keeps synced data and may drop all other data: computes from a trace of
calls the content after a power cut.

The model allows everything that a journaling file system may do, and nothing worse:

* Data covered by an fsync or fdatasync of its file (written before the sync was called, and the
  sync returned) is kept. Data written through a descriptor with O_DSYNC or O_SYNC is kept as soon
  as the write returned.
* Of all other data, any subset of the sectors of 512 bytes may be kept, in any order of time. A
  sector is never torn.
* File lengths follow the writes that arrived, with holes for missing data. A truncated file has the
  new length or keeps none of the data written later to the truncated part.
* Names (new, renamed and removed files and folders) are kept in the order of their changes, for
  each folder separately, at least up to the last fsync of that folder that covered them. An fsync
  of the file itself does not keep its name.
* Killed processes lose nothing: their data stays in the cache until the power is cut.
"""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from strace_calls import Call, data_of, number_of, path_of

SECTOR = 512
#: Share of the unsynced data that arrives: none, a little, half, nearly all, all; None: all up to
#: some moment.
SHARES = (0.0, 0.2, 0.5, 0.9, 1.0, None)


@dataclass(eq=False)
class Change:
    """`data` written at `offset`; if `data` is None, truncation (or extension) to the length
    `offset`. done: the call has returned.
    """

    offset: int
    data: bytes | None
    done: bool = False


@dataclass(eq=False)
class File:
    synced: bytearray = field(default_factory=bytearray)
    #: changes not covered by a sync, oldest first
    changes: list[Change] = field(default_factory=list)

    def size(self) -> int:
        size = len(self.synced)
        for c in self.changes:
            size = c.offset if c.data is None else max(size, c.offset + len(c.data))
        return size

    def now(self) -> bytes:
        """Return the content as a process reads it."""
        out = bytearray(self.synced)
        for change in self.changes:
            _apply(out, change)
        return bytes(out)

    def keep(self, covered: list[Change]) -> None:
        for change in covered:
            if change in self.changes:  # otherwise a concurrent sync already applied it
                _apply(self.synced, change)
                self.changes.remove(change)

    def image(self, chance: random.Random) -> bytes:
        """Return possible content of the file after a power cut now."""
        out = bytearray(self.synced)
        share = chance.choice(SHARES)
        upto = chance.randint(0, len(self.changes)) if share is None else len(self.changes)
        for n, change in enumerate(self.changes[: upto + 1]):
            here = share if share is not None else (1.0 if n < upto else chance.random())
            if change.data is None:
                if chance.random() >= here:
                    # the truncation did not happen: of later changes, keep only those before the
                    # cut
                    self._in_place(out, change.offset, self.changes[n + 1 : upto], here, chance)
                    break
                _apply(out, change)
            else:
                _arrive(out, change.offset, change.data, here, chance)
        return bytes(out)

    def _in_place(
        self, out: bytearray, limit: int, changes: list[Change], share: float, chance: random.Random
    ) -> None:
        for change in changes:
            if change.data is None:
                limit = min(limit, change.offset)
            else:
                room = max(0, min(limit, len(out)) // SECTOR * SECTOR - change.offset)
                _arrive(out, change.offset, change.data[:room], share, chance)


def _apply(out: bytearray, change: Change) -> None:
    if change.data is None:
        del out[change.offset :]
        out.extend(bytes(change.offset - len(out)))
    else:
        out.extend(bytes(max(0, change.offset - len(out))))
        out[change.offset : change.offset + len(change.data)] = change.data


def _arrive(out: bytearray, offset: int, data: bytes, share: float, chance: random.Random) -> None:
    at = offset
    while at < offset + len(data):
        end = min((at // SECTOR + 1) * SECTOR, offset + len(data))
        if share >= 1.0 or chance.random() < share:
            _apply(out, Change(at, data[at - offset : end - offset]))
        at = end


@dataclass(eq=False)
class Step:
    """One name change in a folder. old: the previous name of a renamed node in this folder."""

    name: str
    node: "Node | None"
    old: str | None = None
    done: bool = False


@dataclass(eq=False)
class Folder:
    synced: "dict[str, Node]" = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def now(self, upto: int | None = None) -> "dict[str, Node]":
        names = dict(self.synced)
        for step in self.steps[:upto]:
            _step(names, step)
        return names

    def keep(self, covered: list[Step]) -> None:
        for step in covered:
            if step in self.steps:
                _step(self.synced, step)
                self.steps.remove(step)


Node = File | Folder


def _step(names: dict[str, Node], step: Step) -> None:
    if step.old is not None:
        names.pop(step.old, None)
    if step.node is None:
        names.pop(step.name, None)
    else:
        names[step.name] = step.node


class Disk:
    """`root` and everything in it, built from recorded calls. left_out: paths relative to the
    root's folder that do not matter.
    """

    def __init__(self, root: Path, left_out: Callable[[str], bool]) -> None:
        self._base, self._left_out = str(root.parent), left_out
        self.top = Folder()
        #: by descriptor and path, to distinguish two descriptors open at once
        self._positions: dict[tuple[int, str], int] = {}
        self._appending: set[tuple[int, str]] = set()
        self._immediate: set[tuple[int, str]] = set()
        self._under_way: dict[int, Callable[[], None]] = {}

    # ---- reading

    def find(self, path: str) -> Node | None:
        """Return the node as a process sees it now."""
        node: Node = self.top
        for part in path.split("/"):
            if not isinstance(node, Folder) or part not in (names := node.now()):
                return None
            node = names[part]
        return node

    def write_image(
        self,
        where: Path,
        chance: random.Random,
        *,
        wanted: Callable[[str], bool] = lambda path: True,
    ) -> None:
        """Write possible content of the root's folder after a power cut to `where`."""
        self._write(self.top, where, "", chance, wanted)

    def _write(
        self,
        folder: Folder,
        where: Path,
        path: str,
        chance: random.Random,
        wanted: Callable[[str], bool],
    ) -> None:
        more = chance.choice((0, len(folder.steps), chance.randint(0, len(folder.steps))))
        for name, node in sorted(folder.now(more).items()):
            inner = f"{path}{name}"
            if not wanted(inner):
                continue
            match node:
                case File():
                    (where / name).write_bytes(node.image(chance))
                case Folder():
                    (where / name).mkdir(mode=0o700)
                    self._write(node, where / name, inner + "/", chance, wanted)

    # ---- feeding

    def moments(self, calls: list[Call]) -> Iterator[tuple[int, Call, bool]]:
        """Apply the calls. After each moment, yield (its number, the call, whether it has
        returned).
        """
        moments = [(c.began, 0, c) for c in calls] + [
            (c.ended, 1, c) for c in calls if c.ended is not None
        ]
        for number, returned, call in sorted(moments, key=lambda m: m[:2]):
            if returned:
                self._returned(call)
            else:
                self._entered(call)
            yield number, call, bool(returned)

    def _entered(self, call: Call) -> None:
        if call.result is not None and call.result < 0:
            return
        then = self._change(call)
        if then is not None:
            self._under_way[id(call)] = then

    def _returned(self, call: Call) -> None:
        then = self._under_way.pop(id(call), None)
        if then is not None:
            then()

    def _change(self, call: Call) -> Callable[[], None] | None:
        """Apply the effects visible from the beginning of the call. Return the action to run when
        it has returned.
        """
        args = call.args
        match call.name:
            case "open" | "openat" | "creat":
                return self._open(call)
            case "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2":
                return self._write_call(call)
            case "lseek":
                return self._seek(call)
            case "ftruncate" | "truncate":
                return self._resize(self._path(args[0]), number_of(args[1]))
            case "fsync" | "fdatasync" | "sync" | "syncfs":
                return self._sync(call)
            case "mkdir" | "mkdirat":
                return self._set(self._path(*args[: len(args) - 1]), Folder())
            case "unlink" | "rmdir":
                return self._set(self._path(args[0]), None)
            case "unlinkat":
                return self._set(self._path(args[0], args[1]), None)
            case "rename":
                return self._rename(self._path(args[0]), self._path(args[1]))
            case "renameat" | "renameat2":
                return self._rename(self._path(args[0], args[1]), self._path(args[2], args[3]))
            case "sync_file_range" | "sendto" | "sendmsg":
                return None  # the first promises nothing, the others do not concern disks
            case "symlink" | "symlinkat":
                assert not self._path(*args[1:]), "links are not modelled"
            case _:
                assert not any(self._path(a) for a in args), f"{call.name} is not modelled"
        return None

    def _path(self, *args: str) -> str:
        """Return the path relative to the root's folder; "" if it does not matter. A folder's
        descriptor may precede a name.
        """
        path = os.path.join(*(path_of(a) for a in args))
        path = os.path.normpath(path) if path else ""
        if not path.startswith(self._base + "/"):
            return ""
        path = path[len(self._base) + 1 :]
        return "" if self._left_out(path) else path

    def _parent(self, path: str) -> tuple[Folder, str]:
        folder, _, name = path.rpartition("/")
        node = self.find(folder) if folder else self.top
        assert isinstance(node, Folder), f"{path}: its folder was never made"
        return node, name

    def _set(
        self, path: str, node: Node | None, old: str | None = None
    ) -> Callable[[], None] | None:
        if not path:
            return None
        folder, name = self._parent(path)
        step = Step(name, node, old)
        folder.steps.append(step)
        return lambda: setattr(step, "done", True)

    def _rename(self, before: str, after: str) -> Callable[[], None] | None:
        if not before and not after:
            return None
        assert os.path.dirname(before) == os.path.dirname(after), (
            f"{before} -> {after}: moves between folders are not modelled"
        )
        for descriptor, path in [k for k in self._positions if k[1] == before]:
            self._positions[descriptor, after] = self._positions[descriptor, path]
        return self._set(after, self.find(before), os.path.basename(before))

    def _open(self, call: Call) -> Callable[[], None] | None:
        path = self._path(*call.args[:2]) if call.name == "openat" else self._path(call.args[0])
        if not path or call.result is None:
            return None
        flags = call.args[2] if call.name == "openat" else call.args[1]
        key = (call.result, path)
        self._positions[key] = 0
        for flag, keys in (
            ("O_APPEND", self._appending),
            ("O_DSYNC", self._immediate),
            ("O_SYNC", self._immediate),
        ):
            (keys.add if flag in flags else keys.discard)(key)
        if "O_SYNC" in flags or "O_DSYNC" in flags:
            self._immediate.add(key)
        if self.find(path) is None and "O_CREAT" in flags:
            return self._set(path, File())
        if "O_TRUNC" in flags:
            return self._resize(path, 0)
        return None

    def _write_call(self, call: Call) -> Callable[[], None] | None:
        path = self._path(call.args[0])
        if not path or call.result is None:
            return None
        key = (number_of(call.args[0]), path)
        node = self.find(path)
        assert isinstance(node, File), f"{path} is written and was never made"
        data = data_of(call.args[1])[: call.result]
        if call.name.startswith("p"):
            offset = number_of(call.args[3])
        else:
            offset = node.size() if key in self._appending else self._positions[key]
            self._positions[key] = offset + len(data)
        change = Change(offset, data)
        node.changes.append(change)

        def then() -> None:
            change.done = True
            if key in self._immediate:
                node.keep([change])

        return then

    def _seek(self, call: Call) -> None:
        path = self._path(call.args[0])
        if path and call.result is not None:
            self._positions[number_of(call.args[0]), path] = call.result

    def _resize(self, path: str, length: int) -> Callable[[], None] | None:
        if not path:
            return None
        node = self.find(path)
        assert isinstance(node, File), f"{path} is cut and was never made"
        change = Change(length, None)
        node.changes.append(change)
        return lambda: setattr(change, "done", True)

    def _sync(self, call: Call) -> Callable[[], None] | None:
        if call.name in ("sync", "syncfs"):
            nodes = list(_all(self.top))
        else:
            path = self._path(call.args[0])
            node = (
                self.find(path)
                if path
                else self.top
                if path_of(call.args[0]) == self._base
                else None
            )
            nodes = [] if node is None else [node]
        covered = [
            (n, [c for c in (n.changes if isinstance(n, File) else n.steps) if c.done])
            for n in nodes
        ]

        def then() -> None:
            for node, changes in covered:
                node.keep(changes)  # type: ignore[arg-type]

        return then


def _all(folder: Folder) -> Iterator[Node]:
    yield folder
    for node in folder.now().values():
        if isinstance(node, Folder):
            yield from _all(node)
        else:
            yield node
