"""`doctor`: what of this machine, this user and this installation will stand in the way of jobs,
and what to do about it.
"""

import os
from typing import TYPE_CHECKING, Any

import click

from ..session.session import Session, command, session
from ..session.setting_assignments import assignments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .findings import Finding

_WORDS = {"ok": "ok", "warn": "WARN", "fail": "FAIL", "skip": "-"}


@command()
@click.option("--only", multiple=True, metavar="CHECK", help="This check only; again for others.")
@click.option(
    "--config",
    "file",
    type=click.Path(),
    metavar="FILE",
    help="Configuration file (TOML); must exist.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting, as `up` and `supervisor` take it.",
)
def doctor(only: tuple[str, ...], file: str | None, sets: tuple[str, ...]) -> None:
    """Look at this machine, this user and this installation: what will keep jobs from running, or
    from being understood.

    Needs no supervisor and no rights; run it as the user who runs the supervisor. Exits with 1 when
    something is wrong (FAIL).
    """
    s = session()
    found = examined(s, only, file, sets)
    failed = sum(f.state == "fail" for f in found)
    if s.screen.json:
        import msgspec

        s.screen.value(
            "jobscribe.doctor/1", {"ok": not failed, "items": msgspec.to_builtins(found)}
        )
    else:
        _print(s, found)
    raise SystemExit(1 if failed else 0)


def examined(
    s: Session, only: "Sequence[str]" = (), file: str | None = None, sets: tuple[str, ...] = ()
) -> "list[Finding]":
    """What the checks find; says which ones it waits for. Raises click.UsageError for a check that
    there is not.
    """
    from .check_table import CHECKS
    from .fact_process import findings

    unknown = [name for name in only if name not in CHECKS]
    if unknown:
        raise click.UsageError(f"there is no check {unknown[0]!r}; there are: {', '.join(CHECKS)}")
    return findings(
        _given(s, file, sets),
        tuple(only) or tuple(CHECKS),
        lambda left, secs: s.screen.progress(f"looking at: {', '.join(left)}", secs),
    )


def _given(s: Session, file: str | None, sets: tuple[str, ...]) -> dict[str, Any]:
    return {
        "root": _root(s, file, sets),
        "rootOption": s.options.get("root"),
        "file": os.path.abspath(file) if file else None,
        "sets": assignments(sets),
        "url": s.url,
        "uid": s.options.get("uid"),
        "token": s.token() if s.url else None,
    }


def _root(s: Session, file: str | None, sets: tuple[str, ...]) -> str:
    """As the configuration says where it can be read; what is wrong with it is a finding, not an
    end.
    """
    from ...protocol.errors import Refusal
    from ...service.settings import loader

    try:
        return loader.load({"root": s.options.get("root"), **assignments(sets)}, file=file).root
    except Refusal:
        return os.path.abspath(
            s.options.get("root")
            or os.environ.get("JOBSCRIBE_ROOT")
            or os.path.expanduser("~/.jobscribe")
        )


def _print(s: Session, found: "list[Finding]") -> None:
    width = max(len(f.check) for f in found)
    last = ""
    for f in found:
        s.screen.line(
            f"{_WORDS[f.state]:4}  {f.check if f.check != last else '':<{width}}  {f.sentence}"
        )
        last = f.check
        indent = " " * (width + 8)
        if f.state in ("warn", "fail"):
            s.screen.line(f"{indent}for jobs: {f.means}")
        if f.advice and f.state != "ok":
            s.screen.line(f"{indent}do: {f.advice}")
    counts = {state: sum(f.state == state for f in found) for state in _WORDS}
    s.screen.message(
        f"{counts['ok']} in order, {counts['warn']} to know, {counts['fail']} wrong, {counts['skip']} not looked at"
    )
