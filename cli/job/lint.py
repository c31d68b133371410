"""`jobscribe job lint`: validation of job files, without a supervisor."""

import click

from ..session.session import command, session


@command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
def lint(files: tuple[str, ...]) -> None:
    """Check job files (YAML or JSON; - for standard input), also configurations of OpenPAI. Lists
    all errors with their lines and corrections.

    Exits with 1 if there is an error; warnings do not count. Needs no supervisor: `job submit -f
    FILE --dry-run` also checks whether its machines have the resources.
    """
    from ..submission.job_document import FileOptions, read_document

    s = session()
    items = []
    errors = 0
    for path in files:
        _, problems, warnings = read_document(path, FileOptions())
        errors += len(problems)
        items.append({"file": path, "problems": problems, "warnings": warnings})
        for kind, found in (
            (("error", problems), ("warning", warnings)) if not s.screen.json else ()
        ):
            for problem in found:
                s.screen.line(problem.sentence(kind))
    if s.screen.json:
        s.screen.value("jobscribe.job.lint/1", {"items": items})
    else:
        s.screen.message(
            f"{errors} problem{'' if errors == 1 else 's'} in {len(files)} file{'' if len(files) == 1 else 's'}"
        )
    if errors:
        raise SystemExit(1)
