"""Core files of one execution: what was collected, or why there is none, and the frames of the
process. Values and their sentences only.
"""

from typing import Annotated, Literal

import msgspec

#: kept; or why there is no core, see `SENTENCES`.
CoreState = Literal[
    "kept",
    "tooLarge",
    "diskFull",
    "notMoved",
    "hardLimit",
    "noPattern",
    "piped",
    "notStored",
    "notWritable",
    "notFound",
    "notWritten",
    "timeout",
]
#: Why there are no frames: no tool is installed, it took too long, or it found none.
NoFrames = Literal["noTool", "timeout", "failed"]
#: Why nodes of a batch job give no core files.
NodeState = Literal["hardLimit", "noPattern", "piped", "systemd", "elsewhere"]
_Count = Annotated[int, msgspec.Meta(ge=0)]

#: State -> sentence. {detail}: the kernel's pattern, the program of its pipe, or an error.
SENTENCES: dict[str, str] = {
    "tooLarge": "a core was written and left where it is: it exceeds --core {limit}; submit it with a larger one",
    "diskFull": "a core could not be kept: the disk was full; free space and submit it again",
    "notMoved": "a core was written but could not be collected: {detail}; it is left where the kernel put it",
    "hardLimit": "no core was written: their hard limit is 0 there; raise it for the agent (LimitCORE= of its unit, ulimit -Hc)",
    "noPattern": "no core was written: kernel.core_pattern is empty; an administrator sets it (sysctl kernel.core_pattern=core)",
    "piped": "the kernel gave the core to {detail}, which does not give it back; set kernel.core_pattern=core",
    "notStored": "the kernel gave the core to systemd-coredump, and coredumpctl did not return it: {detail}",
    "notWritable": "no core was written: the run directory is not writable for the user of the job",
    "notFound": "a core was written, but not in or below the run directory: the program was elsewhere (pattern: {detail})",
    "notWritten": "no core was written: the process lowered its limit, is protected (setuid), or was where it cannot write",
    "timeout": "the core was not collected in time; it may be where the kernel put it",
}

NODE_SENTENCES: dict[str, str] = {
    "hardLimit": "processes on {names} write no core files: their hard limit is 0 there (ulimit -Hc)",
    "noPattern": "processes on {names} write no core files: kernel.core_pattern is empty there",
    "piped": "the kernel of {names} gives core files to {detail}, which does not give them back",
    "systemd": "the kernel of {names} gives core files to systemd-coredump; those of the job's first node are copied, and"
    " coredumpctl on the node has the others",
    "elsewhere": "the kernel of {names} puts core files outside of the run directory: {detail}",
}


class Frame(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """kind: the language. file: as the tool names it, "" if unknown; line: 0 if unknown."""

    kind: Literal["python", "native"]
    function: Annotated[str, msgspec.Meta(max_length=200)]
    file: Annotated[str, msgspec.Meta(max_length=200)] = ""
    line: _Count = 0

    @property
    def place(self) -> str:
        name = _leaf(self.file)
        function = "" if self.function.startswith("??") else self.function
        return f"{name}:{self.line} {function}".rstrip() if self.line else function or name or "?"


class CoreFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """name: in `cores/` of the evidence. program: path or short name. complete_bytes: what the core
    should have; more than `size` if it was cut. sha256: None if the time was over.
    """

    name: Annotated[str, msgspec.Meta(max_length=64)]
    pid: _Count | None = None
    program: Annotated[str, msgspec.Meta(max_length=1024)] | None = None
    signal: _Count | None = None
    size: _Count = 0
    complete_bytes: _Count = 0
    sha256: Annotated[str, msgspec.Meta(max_length=64)] | None = None

    @property
    def cut(self) -> bool:
        return self.size < self.complete_bytes


class CoreNodes(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Nodes of a batch job that give no core files. names: as many as fit. detail: the kernel's
    pattern, or the program of its pipe.
    """

    state: NodeState
    names: Annotated[str, msgspec.Meta(max_length=200)]
    detail: Annotated[str, msgspec.Meta(max_length=200)] = ""


class CoreReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """limit: of each core and of all together, in bytes. left: cores that were not collected.
    frames: the innermost that tell most, Python's first. tool: it printed them. nodes: those of
    several whose processes leave no cores.
    """

    state: CoreState
    limit: _Count = 0
    left: _Count = 0
    detail: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    files: Annotated[tuple[CoreFile, ...], msgspec.Meta(max_length=8)] = ()
    frames: Annotated[tuple[Frame, ...], msgspec.Meta(max_length=5)] = ()
    tool: Literal["pystack", "gdb"] | None = None
    no_frames: NoFrames | None = None
    nodes: Annotated[tuple[CoreNodes, ...], msgspec.Meta(max_length=8)] = ()

    def crash(self) -> str | None:
        """Return the place of the crash and its caller, or None without frames."""
        native = [f for f in self.frames if f.kind == "native"]
        python = [f for f in self.frames if f.kind == "python"]
        chain = native[:1] + python if python else native
        if not chain:
            return None
        known = len(chain) > 1 and not chain[1].function.startswith("??")
        called = f", called from {_caller(chain[1])}" if known else ""
        return f"crashed in {chain[0].place}{called}"

    def sentences(self) -> tuple[str, ...]:
        """Return what was collected, what was not, and why. One sentence each."""
        out = []
        for file in self.files:
            cut = f", cut at {file.size} of {file.complete_bytes} bytes" if file.cut else ""
            whose = f" of {_leaf(file.program)}" if file.program else ""
            why = (
                (
                    "; --core limits it"
                    if file.complete_bytes > self.limit
                    else "; its disk was full"
                )
                if file.cut
                else ""
            )
            out.append(
                f"core file {file.name}{whose} (pid {file.pid}): {file.size} bytes{cut}{why}"
            )
        if self.state in SENTENCES:
            out.append(SENTENCES[self.state].format(detail=self.detail, limit=self.limit))
        elif self.left:
            out.append(
                f"{self.left} more core files were left where they are: all together exceed"
                f" {self.limit} bytes, or their number the limit"
            )
        return (*out, *self.node_sentences())

    def node_sentences(self) -> tuple[str, ...]:
        """Return why nodes gave no core files."""
        return tuple(
            NODE_SENTENCES[n.state].format(names=n.names, detail=n.detail) for n in self.nodes
        )


def _leaf(path: str) -> str:
    return path.rpartition("/")[2]


def _caller(frame: Frame) -> str:
    name = _leaf(frame.file)
    return f"{name}:{frame.line} in {frame.function}" if name and frame.line else frame.function
