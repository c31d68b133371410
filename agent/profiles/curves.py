"""Profiles that the agent records: memory and GPUs over time from its samples, and py-spy by pid.

What is asked for is in memory; after a restart of the agent it is read from the script of the
execution. A failure leaves a sentence for `jobscribe profile list`, and the job goes on.
"""

import contextlib
import os
import re
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ...protocol.ids import Token
from ...protocol.jobs import profiling
from ...protocol.jobs.profiling import Profile
from ...protocol.wire.messages import Sample, TaskSpec
from ...runtime.execution.folder import SCRIPT, read
from ...runtime.log.logger import Log
from . import notes

#: Bytes of a script that are read.
SCRIPT_BYTES = 256 * 1024
#: Samples of py-spy per second.
_RATE = 100
#: Bytes of py-spy's messages that are kept.
_MESSAGE_BYTES = 4096
_ASKED = re.compile(
    rf"^export {profiling.VARIABLE}='?([a-z=-]+)'?\nexport {profiling.FOLDER_VARIABLE}='?(/[^'\n]*)'?$",
    re.MULTILINE,
)


class _Curve(msgspec.Struct):
    """The curve of one execution. size: bytes of its file. reason: why there is none."""

    option: Profile
    folder: str
    size: int = 0
    reason: str = ""
    attached: bool = False


class Curves:
    """Profiles of the executions of one agent. evidence: parent of their evidence folders. `sampled`
    may be called in any thread.
    """

    def __init__(self, evidence: Path, log: Log) -> None:
        self._evidence, self._log = evidence, log
        self._curves: dict[Token, _Curve] = {}

    def launch(self, token: Token, spec: TaskSpec) -> None:
        """Note the profile that an execution asks for."""
        found = profiling.option(spec.profile)
        if found is not None:
            self._curves[token] = _Curve(found, notes.folder_of(spec.run_dir, token))

    def recover(self, token: Token) -> None:
        """Read the profile of a running execution that an earlier agent started."""
        script = read(str(self._evidence / token.name / SCRIPT), SCRIPT_BYTES) or b""
        match = _ASKED.search(script.decode("utf-8", "replace"))
        found = None if match is None else profiling.option(match[1])
        if match is not None and found is not None:
            self._curves[token] = _Curve(found, match[2], attached=True)
            self._mark(token)

    def running(self, token: Token, pid: int | None) -> None:
        """Mark the evidence for retention, and attach to the main process if the tool does."""
        curve = self._curves.get(token)
        if curve is None or curve.attached:
            return
        curve.attached = True
        self._mark(token)
        if curve.option.tool == "py-spy" and pid is not None:
            threading.Thread(
                target=_spy, args=(curve, pid, self._log), name="py-spy", daemon=True
            ).start()

    def sampled(self, samples: Sequence[Sample]) -> None:
        """Append samples to the curves. Blocks."""
        for sample in samples:
            curve = self._curves.get(sample.token)
            if curve is not None and curve.option.tool == "samples":
                self._append(curve, sample)

    def ended(self, token: Token) -> None:
        """Forget an execution. Leave a sentence if it has no curve."""
        curve = self._curves.pop(token, None)
        if curve is None:
            return
        if not curve.attached:  # the start of a short execution is reported with its end
            self._mark(token)
        if curve.option.tool != "samples" or curve.size:
            return
        reason = curve.reason or "the job ended before its first sample, which is taken after 1 s"
        notes.unavailable(curve.folder, curve.option, reason)

    def _mark(self, token: Token) -> None:
        """Mark the evidence: retention removes the profiles of marked executions."""
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            os.close(os.open(self._evidence / token.name / profiling.MARKER, flags, 0o600))

    def _append(self, curve: _Curve, sample: Sample) -> None:
        line = _line(curve.option, sample)
        if line is None:
            if curve.option.kind == "gpu":
                curve.reason = (
                    "no GPU usage of the job is known on its machine: it used none, or NVIDIA's driver or"
                    " the package nvidia-ml-py is missing there"
                )
            return
        name = f"{curve.option.kind}-samples.dat"
        text = line if curve.size else f"CMDLINE {sample.token.jid}\n{line}"
        try:
            if curve.size == 0:
                with contextlib.suppress(FileNotFoundError):
                    curve.size = os.lstat(os.path.join(curve.folder, name)).st_size
                text = line if curve.size else text
            if curve.size + len(text) <= profiling.FILE_BYTES:
                notes.append(curve.folder, name, text)
                curve.size += len(text)
        except OSError as e:
            curve.reason = f"the profile cannot be written: {e.strerror}"


def _line(option: Profile, sample: Sample) -> str | None:
    """Return a sample as a line, as in `mprof`'s files; None if its value is unknown."""
    if option.kind == "mem":
        known = sample.memory_bytes
        return None if known is None else f"MEM {known / 2**20:.6f} {sample.at:.4f}\n"
    if sample.gpu_percent is None and sample.gpu_memory_bytes is None:
        return None
    memory = (sample.gpu_memory_bytes or 0) / 2**20
    return f"GPU {sample.gpu_percent or 0:.1f} {memory:.3f} {sample.at:.4f}\n"


def _spy(curve: _Curve, pid: int, log: Log) -> None:
    """Record a process and its children with py-spy until they end."""
    tool = shutil.which("py-spy")
    if tool is None:
        notes.unavailable(
            curve.folder,
            curve.option,
            "py-spy is not in the agent's PATH on the job's machine; install it there"
            " ('pip install py-spy'), or use --profile cpu",
        )
        return
    try:
        notes.make(curve.folder)
        name = f"cpu-py-spy-{pid}-{time.time_ns() // 1_000_000}-job.collapsed"
        path = os.path.join(curve.folder, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        os.close(os.open(path, flags, 0o600))
        options = f"--nonblocking --subprocesses --format raw --rate {_RATE}".split()
        # it goes on when the agent ends
        words = _record([tool, "record", *options, "--pid", str(pid), "--output", path])
        stacks = profiling.plain_stacks(read(path, profiling.FILE_BYTES) or b"")
        notes.replace(path, stacks)
        if not stacks:
            os.unlink(path)
            notes.unavailable(
                curve.folder,
                curve.option,
                f"py-spy recorded nothing: {words or 'the process took no sample'}; it may need the right"
                " to trace processes (ptrace); use --profile cpu, which needs none",
            )
    except OSError as e:
        log("py-spy cannot record {}: {}", pid, e.strerror)


def _record(command: Sequence[str]) -> str:
    """Run py-spy to its end. Return the begin of its messages, as one line. Its files are limited,
    and its other messages are read and dropped. Raises OSError.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as tool:
        assert tool.stderr is not None
        most = (profiling.FILE_BYTES, profiling.FILE_BYTES)
        with contextlib.suppress(OSError):
            resource.prlimit(tool.pid, resource.RLIMIT_FSIZE, most)
        said = b""
        while chunk := os.read(tool.stderr.fileno(), 65536):
            said += chunk[: max(0, _MESSAGE_BYTES - len(said))]
    return " ".join(said.decode("utf-8", "replace").split())[:400]
