"""Mapping of the supervisor's paths to paths on this machine, applied once at the agent's edge.

Supervisor and agent may see one tree under two names, or two trees with equal content. Pure.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ...protocol.wire.messages import (
    Call,
    DigestFile,
    KeepFile,
    ListFiles,
    ReadFile,
    Run,
    RunTasks,
    Shared,
    StoreFile,
    TaskRun,
    TaskSpec,
)


class Paths:
    """Maps paths between supervisor and agent. pairs: (supervisor's path, local path). The longest
    matching prefix applies.
    """

    def __init__(self, pairs: Sequence[Sequence[str]]) -> None:
        known = {
            remote.rstrip("/"): local.rstrip("/")
            for remote, local in pairs
            if remote.rstrip("/") != local.rstrip("/")
        }
        self._known = dict(sorted(known.items(), key=lambda pair: -len(pair[0])))
        # match whole names: /data/user matches neither in /data/users nor in /more/data/user
        names = "|".join(re.escape(remote) for remote in self._known)
        self._inside = (
            re.compile(rf"(?<![A-Za-z0-9_./-])({names})(?![A-Za-z0-9_.-])") if names else None
        )

    @property
    def same(self) -> bool:
        """Return whether supervisor and agent use the same paths."""
        return self._inside is None

    def path(self, path: str) -> str:
        for remote, local in self._known.items():
            if path == remote or path.startswith(remote + "/"):
                return local + path[len(remote) :]
        return path

    def text(self, text: str) -> str:
        """Replace such paths anywhere in a text, for example in `PYTHONPATH` or program options."""
        return text if self._inside is None else self._inside.sub(lambda m: self._known[m[1]], text)

    def message(self, message: Any) -> Any:
        """Return the message with local paths."""
        if self._inside is None:
            return message
        match message:
            case Run():
                return replace(message, spec=self._spec(message.spec))
            case RunTasks():
                shared = Shared(env=self._env(message.shared.env), job=message.shared.job)
                return replace(
                    message, shared=shared, tasks=tuple(self._task(t) for t in message.tasks)
                )
            case Call():
                run_dir = None if message.run_dir is None else self.path(message.run_dir)
                return replace(message, run_dir=run_dir, lib_dir=self.path(message.lib_dir))
            case KeepFile():
                return replace(message, lib_dir=self.path(message.lib_dir))
            case ReadFile() | ListFiles() | DigestFile() | StoreFile():
                return replace(message, run_dir=self.path(message.run_dir))
            case _:
                return message

    def _task(self, task: TaskRun) -> TaskRun:
        return replace(task, spec=self._spec(task.spec))

    def _spec(self, spec: TaskSpec) -> TaskSpec:
        return replace(spec, run_dir=self.path(spec.run_dir), env=self._env(spec.env))

    def _env(self, env: Mapping[str, str]) -> dict[str, str]:
        return {k: self.text(v) for k, v in env.items()}
