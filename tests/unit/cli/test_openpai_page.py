"""docs/openpai.md names every key of both versions."""

import re
from pathlib import Path

import pytest

import jobscribe
from jobscribe.schema.openpai import version1, version2_keys
from jobscribe.schema.structs import field_names

TEXT = (Path(jobscribe.__file__).parent / "docs" / "openpai.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("heading", "structs"),
    [
        ("Version 1", (version1.JobKeys, version1.RoleKeys, version1.PortKeys)),
        (
            "Protocol version 2",
            (
                version2_keys.JobKeys,
                version2_keys.RoleKeys,
                version2_keys.CompletionKeys,
                version2_keys.ResourceKeys,
                version2_keys.ContainerKeys,
                version2_keys.DefaultKeys,
                version2_keys.DeploymentRoleKeys,
            ),
        ),
    ],
)
def test_every_key_has_its_effect_explained(heading: str, structs: tuple[type, ...]) -> None:
    part = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    named = set(re.findall("`([A-Za-z]+)`", part))
    keys = {key for struct in structs for key in field_names(struct)}
    # the deployment of `defaults` is explained with `deployments`
    assert keys - named <= {"deployment"}


def test_each_test_that_the_page_names_exists() -> None:
    tests = Path(__file__).resolve().parents[2]
    named = re.findall(r"`([a-z_/]+/test_\w+\.py)::(test_\w+)`", TEXT)
    assert len(named) > 25
    missing = [
        f"{file}::{name}"
        for file, name in named
        if f"def {name}(" not in (tests / file).read_text()
    ]
    assert missing == []
