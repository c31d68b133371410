"""`jobscribe config show` and `config check`: settings with their sources, and their validation."""

import click

from .session.session import command, session
from .session.setting_assignments import assignments


@command()
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
def show(file: str | None, sets: tuple[str, ...]) -> None:
    """Show every setting with its value and the source of the value."""
    from ..service.settings import loader

    s = session()
    rows = loader.show(loader.load({"root": s.options.get("root"), **assignments(sets)}, file=file))
    if s.screen.json:
        s.screen.value("jobscribe.config.show/1", {"items": [row._asdict() for row in rows]})
        return
    s.screen.table(
        ("SETTING", "VALUE", "ORIGIN", "ABOUT"), [(r.key, r.value, r.origin, r.about) for r in rows]
    )


@command()
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
def check(file: str | None, sets: tuple[str, ...]) -> None:
    """Check whether `jobscribe supervisor` can start with this configuration, and `jobscribe server` if
    it names a way to sign in. Exits with 1 if one of them cannot.
    """
    from ..protocol.errors import Refusal
    from ..service.settings import loader
    from ..service.site import sign_in_checks, startup_checks

    s, front = session(), False
    try:
        settings = loader.load({"root": s.options.get("root"), **assignments(sets)}, file=file)
        found, front = list(startup_checks.problems(settings)), bool(sign_in_checks.ways(settings))
        found += startup_checks.front_end_problems(settings) if front else ()
        warnings = [] if found else list(startup_checks.warnings(settings))
    except Refusal as e:
        found, warnings = [e], []
    if s.screen.json:
        s.screen.value(
            "jobscribe.config.check/1",
            {"ok": not found, "items": [problem.body() for problem in found], "warnings": warnings},
        )
    else:
        for problem in found:
            s.screen.line(f"{problem.code}: {problem.sentence}")
        for warning in warnings:
            s.screen.message(f"warning: {warning}")
        if not found:
            who = "a supervisor and a front end" if front else "a supervisor"
            s.screen.message(f"{who} can start with this configuration")
    raise SystemExit(1 if found else 0)
