"""docs/apps.md covers the whole app contract: every function, data shape and variable, and an
example that works.
"""

from pathlib import Path
from typing import get_args

import msgspec
import pytest

import jobscribe
from jobscribe.apps import app, registry
from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs import progress_report
from jobscribe.protocol.launch.job_script import identity_variables
from jobscribe.protocol.wire import messages

TEXT = (Path(jobscribe.__file__).parent / "docs" / "apps.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [f.name for f in msgspec.structs.fields(app.App)])
def test_every_part_of_an_app_is_explained(name: str) -> None:
    assert f"`{name}" in TEXT or name in ("title", "models")


@pytest.mark.parametrize("picture", get_args(app.Picture))
def test_every_picture_has_its_shape(picture: str) -> None:
    assert f"* `{picture}`: `{{" in " ".join(TEXT.split())


@pytest.mark.parametrize(
    "variable", list(identity_variables(Token("user1234-sim12345-x", 1, 1, "main", 0), "/r", "/e"))
)
def test_every_variable_is_named(variable: str) -> None:
    assert f"`{variable}`" in TEXT or f"`{variable.removeprefix('JOBSCRIBE')}`" in TEXT


def test_the_limits_are_the_real_ones() -> None:
    said = " ".join(TEXT.split())
    assert f"may have {messages.REPLY_LIMIT // 1024**2} MiB" in said
    assert (
        f"a report {progress_report.LIMIT // 1024} KiB, {progress_report.MAX_KEYS} keys and {progress_report.MAX_DEPTH} levels"
        in said
    )


def test_the_entry_points_group_is_the_one_that_is_read() -> None:
    assert f'[project.entry-points."{registry.GROUP}"]' in TEXT
