"""Snakemake's executor `jobscribe`: settings, and what Snakemake calls.

A job is a run with a stable id. All runs of a workflow are one group, so one request tells the
states of all. Connections and records are in the other modules.
"""

import os
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.jobs import JobExecutorInterface
from snakemake_interface_executor_plugins.settings import CommonSettings, ExecutorSettingsBase

from .jobs import JobScripts
from .runs import Refused, Runs, Submitted, opened

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

#: Snakemake loads its plug-ins before it looks at the files of the workflow.
_LOADED_AT = time.time()
_CANCELED = "the workflow was canceled"


def _option(text: str, default: Any = "") -> Any:
    return field(default=default, metadata={"help": text, "required": False})


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """The options `--jobscribe-*` of Snakemake. Empty: not given."""

    root: str = _option("Root of the supervisor (default: as for the command jobscribe)")
    url: str = _option("Address of the supervisor, instead of a root")
    token_file: str = _option("File with the API token for the address")
    site: str = _option("Site of a login with 'jobscribe auth login'")
    driver: str = _option("Driver of jobs without the resource jobscribe_driver")
    image: str = _option("Image of jobs without the resource jobscribe_image")
    patience: int = _option("Seconds to wait while the supervisor is unavailable", 600)


common_settings = CommonSettings(
    non_local_exec=True,
    implies_no_shared_fs=False,
    job_deploy_sources=False,
    # Snakemake exports variables in the script, which only its owner can read
    pass_envvar_declarations_to_cmd=True,
    auto_deploy_default_storage_provider=False,
)


class Executor(RemoteExecutor):
    """Submits jobs, follows them and cancels them. Snakemake calls it in two threads."""

    def __post_init__(self) -> None:
        settings = self.workflow.executor_settings
        try:
            client = opened(settings)
        except Refused as e:
            raise WorkflowError(str(e)) from None
        self._jobs = JobScripts(self, settings.driver or None, settings.image or None)
        self._runs = Runs(client, self._jobs.folder, _LOADED_AT)

    def run_job(self, job: JobExecutorInterface) -> None:
        """Submit one job."""
        self._submit([job])

    def run_jobs(self, jobs: list[JobExecutorInterface]) -> None:
        """Submit all jobs that are ready, with one request."""
        for job in jobs:
            self.run_job_pre(job)
        self._submit(jobs)

    async def check_active_jobs(
        self, active_jobs: list[SubmittedJobInfo]
    ) -> AsyncGenerator[SubmittedJobInfo, None]:
        """Report the jobs whose runs are over, and yield the others."""
        if not active_jobs:
            return  # the first call may come before __post_init__
        async with self.status_rate_limiter:
            try:
                ended = self._runs.ended([_known(info) for info in active_jobs])
            except Refused as e:
                raise WorkflowError(str(e)) from None
        for info in active_jobs:
            outcome = ended.get(info.external_jobid or "")
            if outcome is None:
                yield info
            elif outcome.failure is None:
                self.report_job_success(info)
            else:
                self.report_job_error(info, msg=f"{outcome.failure}\n", aux_logs=outcome.logs)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel these jobs, and wait until none of their processes is left."""
        try:
            self._runs.cancel([_known(info) for info in active_jobs], _CANCELED)
        except Refused as e:
            self.logger.error(f"jobs may be running: {e}")

    def shutdown(self) -> None:
        """End the thread that checks jobs, then the connections."""
        super().shutdown()
        self._runs.close()

    def envvars(self) -> dict[str, str]:
        """Return the variables for jobs. Earlier Snakemakes leave out those of `envvars:`."""
        declared = {name: os.environ[name] for name in self.workflow.envvars if name in os.environ}
        return {**declared, **super().envvars()}

    def get_job_exec_prefix(self, job: JobExecutorInterface) -> str:
        """Return the command that enters the workflow's folder."""
        return self._jobs.prefix()

    def _submit(self, jobs: list[JobExecutorInterface]) -> None:
        orders, named = [], {}
        for job in jobs:
            try:
                order = self._jobs.order(job)
            except ValueError as e:
                self.report_job_error(SubmittedJobInfo(job), msg=f"{e}\n")
                continue
            orders.append(order)
            named[order.model] = job
        try:
            answers = self._runs.submit(orders)
        except Refused as e:
            raise WorkflowError(str(e)) from None
        for model, answer in answers.items():
            job = named[model]
            if isinstance(answer, Refused):
                self.report_job_error(SubmittedJobInfo(job), msg=f"{answer}\n")
                continue
            self.logger.info(f"Job {job.jobid} is the run {answer.jid}{answer.note}.")
            aux = {"serial": answer.serial}
            self.report_job_submission(SubmittedJobInfo(job, external_jobid=answer.jid, aux=aux))


def _known(info: SubmittedJobInfo) -> Submitted:
    return Submitted(info.external_jobid or "", int((info.aux or {}).get("serial", 0)))
