"""The profile that a run asks for, the files of profiles, and what each tool costs. Pure."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

import msgspec

from ..errors import Refusal
from ..ids import Token

Kind = Literal["cpu", "mem", "gpu"]
#: The tools of each kind; the first one is the default.
TOOLS: Mapping[Kind, tuple[str, ...]] = {
    "cpu": ("sampler", "cprofile", "py-spy"),
    "mem": ("samples", "memray"),
    "gpu": ("samples",),
}
#: A kind, or a kind and its tool (`cpu=cprofile`).
ProfileOption = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(cpu(=(sampler|cprofile|py-spy))?|mem(=(samples|memray))?|gpu(=samples)?)\Z"
    ),
]
#: Folder of profiles in the directory of a task.
FOLDER = "jobscribe-profiles"
#: Bytes of one profile. `agent/profiles/staged`, which cannot import this, has the same number.
FILE_BYTES = 8 * 2**20
#: File in the evidence of an execution with profiles.
MARKER = "profiled"
#: Variables of a job for `agent/profiles/staged`.
VARIABLE, FOLDER_VARIABLE = "JOBSCRIBE_PROFILE", "JOBSCRIBE_PROFILE_DIR"
#: The tool that records memory within a process, where no agent takes samples.
IN_PROCESS = "mem=process"
#: What a tool costs the job.
OVERHEAD: Mapping[str, str] = {
    "cpu-sampler": "about 2 %",
    "cpu-cprofile": "up to 400 %",
    "cpu-py-spy": "below 1 %",
    "mem-samples": "none",
    "mem-process": "below 1 %",
    "mem-memray": "10 to 100 %",
    "gpu-samples": "none",
}
_UNAVAILABLE, LIMIT = "unavailable-", "limit"
_NAME = re.compile(
    r"(?P<tool>(cpu|mem|gpu)-(sampler|cprofile|py-spy|samples|process|memray))"
    r"(-(?P<pid>[0-9]{1,10})-(?P<millis>[0-9]{1,15})-(?P<program>[A-Za-z0-9._-]{1,40}))?"
    r"\.(?P<ending>collapsed|prof|dat|bin)(\.(?P<child>[0-9]{1,10}))?\Z"
)
#: The command line of a process in py-spy's stacks, and a line of them.
_PROCESS = re.compile(rb'process (\d{1,10}):".*?";', re.DOTALL)
_STACK = re.compile(rb"[^;\n].* [0-9]{1,18}\n?\Z")
_TASK = re.compile(r"[0-9]{1,20}-[0-9]{1,10}-[A-Za-z0-9_]{1,64}-[0-9]{1,10}\Z")


class Profile(NamedTuple):
    """A requested profile."""

    kind: Kind
    tool: str

    def __str__(self) -> str:
        return f"{self.kind}={self.tool}"

    @property
    def in_process(self) -> bool:
        """Return whether processes of the job record themselves."""
        return self.tool in ("sampler", "cprofile", "memray")


class Artifact(NamedTuple):
    """A file of profiles. name: in the run directory. task: `SERIAL-ATTEMPT-ROLE-INDEX`. note: it is
    no profile, but a sentence about a missing one.
    """

    name: str
    task: str
    file: str
    tool: str = ""
    pid: int | None = None
    program: str = ""
    ending: str = ""
    note: bool = False


def option(text: str | msgspec.UnsetType | None) -> Profile | None:
    """Return the profile of a run's field."""
    if not isinstance(text, str):
        return None
    kind, equals, tool = text.partition("=")
    tools = TOOLS.get(kind)  # type: ignore[call-overload]
    if tools is None or (equals and tool not in tools):
        return None
    return Profile(kind, tool or tools[0])  # type: ignore[arg-type]


def check(text: str | msgspec.UnsetType, *, allowed: bool, in_containers: bool) -> None:
    """Check the profile of a run. in_containers: its tasks have containers of their own. Raises
    Refusal (badRequest, forbidden).
    """
    if not isinstance(text, str):
        return
    found = option(text)
    if found is None:
        raise Refusal("badRequest", f"profile: {choices()}")
    if not allowed:
        raise Refusal(
            "forbidden",
            "profiles are turned off at this site (profiler.allowed); submit the run without --profile",
        )
    if in_containers and not (found.in_process or found.kind == "mem"):
        raise Refusal(
            "badRequest",
            f"{found} needs an agent beside the job, which tasks in containers of their own do not have;"
            " use --profile cpu, cpu=cprofile, mem or mem=memray, or submit a plain run (without"
            " --image, --cpu and roles)",
        )


def choices() -> str:
    """Return the possible values, as a sentence."""
    found = [f"{kind}={tool}" for kind, tools in TOOLS.items() for tool in tools]
    return f"a profile is one of: {', '.join((*TOOLS, *found))}"


def plain_stacks(raw: bytes) -> bytes:
    """Return the stacks of py-spy without the command lines of processes, which may have line breaks
    and secrets.
    """
    lines = _PROCESS.sub(rb"process \1;", raw).splitlines(keepends=True)
    return b"".join(line for line in lines if _STACK.match(line))


def task_folder(token: Token) -> str:
    """Return the folder of one task's profiles, relative to the directory of the task."""
    return f"{FOLDER}/{token.serial}-{token.attempt}-{token.role}-{token.index}"


def artifact(name: str) -> Artifact | None:
    """Return the artifact that this file of a run directory is; None for other files."""
    folder, task, file = ["", "", *name.split("/")][-3:]
    if folder != FOLDER or not _TASK.match(task):
        return None
    if file.endswith(".txt"):
        tool = file.removesuffix(".txt")
        if tool != LIMIT and not tool.startswith(_UNAVAILABLE):
            return None
        return Artifact(name, task, file, tool.removeprefix(_UNAVAILABLE), note=True)
    match = _NAME.match(file)
    if match is None:
        return None
    pid = match["child"] or match["pid"]
    return Artifact(
        name,
        task,
        file,
        match["tool"],
        None if pid is None else int(pid),
        match["program"] or "",
        match["ending"],
    )
