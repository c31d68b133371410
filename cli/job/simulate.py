"""`jobscribe job simulate`: one task of a job file on this machine, without a supervisor."""

from typing import TYPE_CHECKING

import click

from ...protocol.errors import Refusal
from ..session.session import Session, command, session

if TYPE_CHECKING:
    from ..submission.simulation import Outcome


@command()
@click.option(
    "-f",
    "--file",
    "path",
    required=True,
    metavar="FILE",
    help="Job file (YAML or JSON) or configuration of OpenPAI; - for standard input.",
)
@click.option("--job", "job", metavar="NAME", help="The job, if the file has several.")
@click.option("--role", metavar="ROLE", help="The role of the task (default: the first role).")
@click.option(
    "--index",
    type=click.IntRange(0),
    metavar="N",
    help="The index of the task (default: 0), or of the run in an array (default: the first).",
)
@click.option(
    "--dir",
    "folder",
    metavar="DIR",
    help="Run directory (default: a new one below the folder for temporary files).",
)
@click.option("--no-image", "no_image", is_flag=True, help="Run the command without its image.")
def simulate(
    path: str,
    job: str | None,
    role: str | None,
    index: int | None,
    folder: str | None,
    no_image: bool,
) -> None:
    """Run one task of a job file here, as a driver would: with its command, directory, variables,
    ports and job.json, and in its image if it has one (with `docker`). Then explain its exit.

    The other tasks do not run: nothing listens on their ports. Cores and memory are limited in
    containers only. Exits with the code of the task (128+n for signal n).
    """
    from ..submission.job_document import FileOptions, read_document
    from ..submission.simulation import prepare, run_task

    s = session()
    document, problems, warnings = read_document(path, FileOptions(containers=not no_image))
    for problem in warnings if not s.screen.json else ():
        s.screen.message(problem.sentence("warning"))
    if problems or document is None:
        for problem in problems if not s.screen.json else ():
            s.screen.message(problem.sentence())
        raise Refusal(
            "badRequest", f"nothing was started: {path} has problems", {"problems": problems}
        )
    task = prepare(document, job, role, index, folder, containers=not no_image)
    if not s.screen.json:
        where = f"in {task.image}" if task.image else "without a container"
        s.screen.message(f"{task.name} {where}, in {task.directory}")
        for note in task.notes:
            s.screen.message(f"  {note}")
    outcome = run_task(task, to_stderr=s.screen.json)
    _report(s, outcome)
    raise SystemExit(outcome.shell_code)


def _report(s: Session, outcome: "Outcome") -> None:
    from ..explain_exit import exit_lines

    lines = exit_lines(outcome.exit)
    if s.screen.json:
        value = {
            "task": outcome.task.name,
            "directory": outcome.task.directory,
            "image": outcome.task.image,
            "notes": outcome.task.notes,
            "exitCode": outcome.exit.code,
            "signal": outcome.exit.signal,
            "explanation": [line.strip() for line in lines],
        }
        s.screen.value("jobscribe.job.simulate/1", value)
        return
    for line in lines:
        s.screen.message(line)
