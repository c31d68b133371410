"""Orders from Snakemake's jobs: stable id, script and options of the run."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.utils import encode_target_jobs_cli_args

from .run_options import compute_model, run_options

#: What of a job's properties decides on its result; other properties change with the workflow.
_MEANING = ("rule", "input", "output", "params", "wildcards")


class Order(NamedTuple):
    """A job to submit. meaning: digest of its commands and files. script: its text. options: of
    `Client.spec`. outputs: paths that exist after its success; none if they are not visible here.
    """

    model: str
    name: str
    meaning: str
    script: Callable[[], str]
    options: dict[str, Any]
    outputs: tuple[str, ...]


class JobScripts:
    """Makes orders for the executor of one workflow. driver, image: of jobs that name none."""

    def __init__(self, executor: Any, driver: str | None, image: str | None) -> None:
        self._executor, self._driver, self._image = executor, driver, image
        self._workflow = executor.workflow
        if not self._workflow.storage_settings.assume_common_workdir:
            raise WorkflowError(
                "jobscribe runs jobs in the workflow's folder, which they must see under the same path;"
                " leave out --shared-fs-usage none"
            )
        self.folder = Path(self._workflow.persistence.path).absolute() / "jobscribe"

    def prefix(self) -> str:
        return f"cd {shlex.quote(str(self._workflow.workdir_init))}"

    def order(self, job: Any) -> Order:
        """Return the order of a job or group job. Raises ValueError for invalid resources."""
        # the last job identifies its group
        words = [str(job.jobid)] if job.is_group() else _targets(job)
        return Order(
            model=compute_model(job.name, words),
            name=", ".join(_targets(job))[:200],
            meaning=_meaning(job),
            script=lambda: self._script(job),
            options=run_options(dict(job.resources), job.threads, self._driver, self._image),
            outputs=tuple(os.path.abspath(str(path)) for path in job.output),
        )

    def _script(self, job: Any) -> str:
        path = self._executor.get_jobscript(job)
        self._executor.write_jobscript(job, path)
        return Path(path).read_text(encoding="utf-8")


def _targets(job: Any) -> list[str]:
    return sorted(encode_target_jobs_cli_args(job.get_target_spec()))


def _meaning(job: Any) -> str:
    members: Iterable[Any] = job.jobs if job.is_group() else [job]
    found = []
    for each in members:
        properties = json.loads(each.properties())
        command = str(getattr(each, "shellcmd", None))
        found.append([command, *(properties.get(name) for name in _MEANING)])
    text = json.dumps(sorted(json.dumps(each, default=str) for each in found))
    return hashlib.sha256(text.encode()).hexdigest()
