"""`job lint`: what is wrong with job files. Needs no supervisor."""

import click

from ..session.session import command, session


@command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def lint(files: tuple[str, ...]) -> None:
    """Check job files (YAML or JSON; - for standard input): all that is wrong, each with its line,
    and what would be right.

    Exits with 1 when anything is wrong; warnings alone do no harm. Needs no supervisor: whether its
    machines have enough for the jobs is said by `job submit -f FILE --dry-run`.
    """
    from ..submission.job_files import checked

    s = session()
    items = []
    wrong = 0
    for path in files:
        _, problems, warnings = checked(path)
        wrong += len(problems)
        items.append({"file": path, "problems": problems, "warnings": warnings})
        for kind, found in (
            (("error", problems), ("warning", warnings)) if not s.screen.json else ()
        ):
            for problem in found:
                s.screen.line(problem.sentence(kind))
    if s.screen.json:
        s.screen.value("jobscribe.job.lint/1", {"items": items})
    else:
        s.screen.say(
            f"{wrong} problem{'' if wrong == 1 else 's'} in {len(files)} file{'' if len(files) == 1 else 's'}"
        )
    if wrong:
        raise SystemExit(1)
