"""`jobscribe debug serial`: why an object cannot be sent to a job, without a supervisor."""

import operator
import os
import sys
from typing import Any

import click

from ..session.session import command, session

MODULE = "__jobscribe_inspected__"


@command()
@click.argument("place", metavar="FILE:NAME")
def serial(place: str) -> None:
    """Inspect an object for values that cannot be pickled. FILE is a Python file, which is run;
    NAME is a function or variable in it, such as `train` or `config.model`.

    Exits with 1 if there are any. Values are not shown.
    """
    from ...client.functions.inspection import inspect_serializable

    file, _, name = place.rpartition(":")
    if not file or not name:
        raise click.UsageError(f"write FILE:NAME, such as train.py:main, not {place!r}")
    found = inspect_serializable(_object(file, name), name)
    screen = session().screen
    if screen.json:
        import msgspec

        offenders = [msgspec.to_builtins(each) for each in found.offenders]
        screen.value(
            "jobscribe.debug.serial/1",
            {"name": name, "ok": found.ok, "complete": found.complete, "offenders": offenders},
        )
    else:
        for each in found.offenders:
            screen.line(each.sentence())
        if not found.complete:
            screen.message("a limit ended the inspection; there may be more")
        if found.ok:
            screen.line(f"{name} can be sent to a job")
    if not found.ok:
        sys.exit(1)


def _object(file: str, name: str) -> Any:
    """Run the file and return the object. Raises click.ClickException."""
    import importlib.util

    if not os.path.isfile(file):
        raise click.UsageError(f"there is no file {file!r}")
    spec = importlib.util.spec_from_file_location(MODULE, file)
    if spec is None or spec.loader is None:
        raise click.UsageError(f"{file!r} is no Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    # as for `python FILE`
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as e:
        if isinstance(e, KeyboardInterrupt):
            raise
        raise click.ClickException(f"{file} failed: {type(e).__name__}: {e!s:.300}") from None
    _send_by_value(module)
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        raise click.UsageError(f"{file} has no {name}") from None


def _send_by_value(module: Any) -> None:
    """Pickle the functions and classes of the file as those of a script are."""
    from ...client.functions.pickling import load_cloudpickle

    load_cloudpickle().register_pickle_by_value(module)
