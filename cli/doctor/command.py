"""The command `doctor`: faults of this machine, user and installation that affect jobs, with
actions.
"""

import os
from typing import TYPE_CHECKING, Any

import click

from ..session.session import Session, command, session
from ..session.setting_assignments import assignments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .findings import Finding

_LABELS = {"ok": "ok", "warn": "WARN", "fail": "FAIL", "skip": "-"}


@command()
@click.option("--only", multiple=True, metavar="CHECK", help="Only this check; may be repeated.")
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
    help="A setting, as for `up` and `supervisor`.",
)
def doctor(only: tuple[str, ...], file: str | None, sets: tuple[str, ...]) -> None:
    """Check this machine, user and installation for faults that keep jobs from running or from
    being diagnosed.

    Needs no supervisor and no special permissions. Run it as the user of the supervisor. Exits with
    1 if a check fails (FAIL).
    """
    from .findings import FindingState

    s = session()
    found = run_checks(s, only, file, sets)
    failed = sum(f.state == FindingState.FAIL for f in found)
    if s.screen.json:
        import msgspec

        s.screen.value(
            "jobscribe.doctor/1", {"ok": not failed, "items": msgspec.to_builtins(found)}
        )
    else:
        _print(s, found)
    raise SystemExit(1 if failed else 0)


def run_checks(
    s: Session, only: "Sequence[str]" = (), file: str | None = None, sets: tuple[str, ...] = ()
) -> "list[Finding]":
    """Run the checks and return their findings, with progress messages. Raises click.UsageError for
    an unknown check.
    """
    from .check_table import CHECKS
    from .fact_process import findings

    unknown = [name for name in only if name not in CHECKS]
    if unknown:
        raise click.UsageError(
            f"there is no check {unknown[0]!r}; known checks: {', '.join(CHECKS)}"
        )
    return findings(
        _parameters(s, file, sets),
        tuple(only) or tuple(CHECKS),
        lambda left, secs: s.screen.progress(f"checking: {', '.join(left)}", secs),
    )


def _parameters(s: Session, file: str | None, sets: tuple[str, ...]) -> dict[str, Any]:
    if s.options.get("site"):
        raise click.UsageError(
            "doctor checks a machine; run it on the supervisor's machine with --root DIR"
        )
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
    """Return the configured root, or the default if the configuration is invalid: its problems are
    findings, not errors.
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
    from .findings import FindingState

    width = max(len(f.check) for f in found)
    last = ""
    for f in found:
        s.screen.line(
            f"{_LABELS[f.state]:4}  {f.check if f.check != last else '':<{width}}  {f.sentence}"
        )
        last = f.check
        indent = " " * (width + 8)
        if f.state in (FindingState.WARN, FindingState.FAIL):
            s.screen.line(f"{indent}effect: {f.means}")
        if f.advice and f.state != FindingState.OK:
            s.screen.line(f"{indent}action: {f.advice}")
    counts = {state: sum(f.state == state for f in found) for state in _LABELS}
    s.screen.message(
        ", ".join(
            [
                f"{counts['ok']} ok",
                _plural(counts["warn"], "warning"),
                _plural(counts["fail"], "error"),
                f"{counts['skip']} skipped",
            ]
        )
    )


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
