"""`jobscribe job clone`: a new job from the definition of an earlier one."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ....client.api.errors import ClientError
from ....protocol.errors import Refusal
from ....schema.fields import InvalidDocument, Problem
from ...session.job_names import resolve_job
from ...session.session import Session, command, session

if TYPE_CHECKING:
    from ....client.sync_client import Job
    from ....protocol.jobs.registry_login import RegistryLogin
    from ....schema.jobs.job_file import Definition
    from ....schema.text.document import Tree


@command()
@click.argument("name", metavar="JOB")
@click.option("--edit", is_flag=True, help="Edit the job file in $EDITOR before it is submitted.")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a value of the job file, such as env.STEPS=5; the value null removes it.",
)
@click.option("--name", "new_name", metavar="TEXT", help="Name of the new job.")
def clone(name: str, edit: bool, sets: tuple[str, ...], new_name: str | None) -> None:
    """Submit a new job from the definition of JOB, with changes, and print its computeJid.

    Values that look like a secret are not copied: the command names each, and --set or --edit gives
    it. With --edit, an unchanged or empty file submits nothing.
    """
    from ....schema.jobs.job_file import changed

    s = session()
    jid = resolve_job(s, name)
    found = s.client().definition(jid)
    changes = dict(map(_assignment, sets))
    if new_name is not None:
        changes["simName" if found.app else "name"] = new_name
    data = changed(found.data, changes)
    if not s.screen.json:
        for note in found.notes:
            s.screen.message(note)
    runs = _edited(s, jid, found, data) if edit else _submitted(s, found, data)
    _report(s, jid, runs)


def _assignment(text: str) -> tuple[str, Any]:
    """Return path and value of KEY=VALUE. Values of variables are texts; others are read as JSON if
    they are JSON.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--set")
    variable = ".env." in f".{key}" and value != "null"
    try:
        return key, value if variable else json.loads(value)
    except (ValueError, RecursionError):
        return key, value


def _submitted(s: Session, found: "Definition", data: Any) -> list["Job | ClientError"]:
    """Submit the data. Raises Refusal with its problems."""
    try:
        return s.client().submit_definition(
            data, app=found.app, credentials=_credentials(data, found.app, None)
        )
    except (ClientError, InvalidDocument) as e:
        problems = _problems(e)
        if not problems:
            raise
    for problem in problems if not s.screen.json else ():
        s.screen.message(problem.sentence())
    many = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    raise Refusal(
        "badRequest",
        f"nothing was submitted: the definition has {many}",
        {"problems": problems, "advice": "give the values with --set KEY=VALUE, or use --edit"},
    )


def _edited(s: Session, jid: str, found: "Definition", data: Any) -> list["Job | ClientError"]:
    """Let the user edit the job file, and submit it."""
    from ....schema.text.reader import parse
    from ...submission.job_text import job_text
    from .editor import Stopped, edit

    runs: list[Job | ClientError] = []

    def attempt(content: bytes, path: str) -> Sequence[Problem]:
        tree: Tree | None = None
        try:
            tree = parse(content, path)
            credentials = _credentials(tree.data, found.app, tree)
            runs.extend(
                s.client().submit_definition(tree.data, app=found.app, credentials=credentials)
            )
        except (ClientError, InvalidDocument) as e:
            problems = _problems(e)
            if not problems:
                raise
            return problems if tree is None else tree.located(problems)
        return []

    try:
        edit(_comments(jid, found) + job_text(data), attempt)
    except Stopped as e:
        s.screen.message(str(e))
        raise SystemExit(1) from None
    return runs


def _credentials(data: Any, app: bool, tree: "Tree | None") -> "dict[str, RegistryLogin]":
    """Read the files in `registryAuth`. Raises InvalidDocument."""
    if app or not isinstance(data, dict) or not data.get("registryAuth"):
        return {}
    from ....schema.jobs.description import Description
    from ....schema.jobs.job_file import parse_definition
    from ...submission.registry_files import own_logins

    description = parse_definition(data, app)
    assert isinstance(description, Description)
    logins = own_logins(description)
    if logins.problems:
        raise InvalidDocument(logins.problems)
    return logins.known


def _problems(error: ClientError | InvalidDocument) -> list[Problem]:
    if isinstance(error, InvalidDocument):
        return list(error.problems)
    try:
        return msgspec.convert(error.more.get("problems") or [], list[Problem])
    except msgspec.ValidationError:
        return []


def _comments(jid: str, found: "Definition") -> str:
    """Return the comments at the top of the file."""
    page = (
        "the fields of the request `run-simulation` (docs/http.md)" if found.app else "docs/jobs.md"
    )
    lines = [
        f"A new job from {jid}. Save the file to submit it; all problems are shown first.",
        "An unchanged or empty file submits nothing.",
        f"The keys are explained in {page}.",
        *found.notes,
        *(f"Not copied: {w.where}; replace {w.reference} by the value." for w in found.withheld),
    ]
    return "".join(f"# {line}\n" for line in lines)


def _report(s: Session, jid: str, runs: list["Job | ClientError"]) -> None:
    refused = [r for r in runs if isinstance(r, ClientError)]
    if s.screen.json:
        items = [r.body() if isinstance(r, ClientError) else _raw(r) for r in runs]
        s.screen.value("jobscribe.job.clone/1", {"clonedFrom": jid, "items": items})
    for run in runs if not s.screen.json else ():
        if isinstance(run, ClientError):
            s.screen.message(run.sentence)
            continue
        s.screen.line(run.jid)
        if run.submitted is not None:
            s.screen.message(f"cloned from {jid} ({run.submitted.sentence()})")
    if refused:
        raise SystemExit(125)


def _raw(run: "Job") -> dict[str, Any]:
    assert run.submitted is not None
    return run.submitted.raw
