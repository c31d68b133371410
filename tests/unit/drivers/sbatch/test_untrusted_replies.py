"""Replies from a login node are under the user's control: any invalid reply gives a short error,
and none of its content is stored.
"""

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sbatch_agents import KEY, SPEC, SbatchAgents, Ssh, made_ground

from jobscribe.drivers.sbatch.login_node import site as sites
from jobscribe.drivers.sbatch.login_node.channel import CommandResult
from jobscribe.protocol.errors import Refusal

from .test_driver import signed_in

pytestmark = pytest.mark.process

GOOD = {
    "number": 1,
    "pid": 2,
    "startTicks": 3,
    "bootId": "b",
    "host": "login1",
    "started": True,
    "folder": "/elsewhere",
}


@pytest.fixture
async def batch_site() -> AsyncIterator[SbatchAgents]:
    async with made_ground() as batch_site:
        yield batch_site


class Liar(Ssh):
    """A channel that answers every login-node verb with the same text."""

    def __init__(self, text: bytes) -> None:
        super().__init__()
        self.text = text

    async def run(self, argv: Any, stdin: bytes = b"", secs: float = 30.0) -> Any:
        if "jobscribe.agent.login_node" in argv:
            return CommandResult(0, self.text, b"")
        return await super().run(argv, stdin, secs)


def line(said: Any) -> bytes:
    return sites.MARK.encode() + json.dumps(said).encode() + b"\n"


LIES = {
    "deep": sites.MARK.encode() + b"[" * 200_000 + b"\n",
    "no object": line([1]),
    "nothing": line({}),
    "long": line({"error": "x" * 3_000_000}),
    "a terminal's": line({"error": "\x1b[2J\nok: signed in\x07"}),
    "a pid that is none": line({**GOOD, "pid": "1; rm"}),
    "a large name": line({**GOOD, "host": "h" * 5000}),
    "another state": line({"state": ["alive"], "detail": {}}),
    "no base64": line({**GOOD, "pid": -1, "before": "?", "output": 5}),
    "more than was asked for": line({"data": "AAAA" * 700_000, "size": -1}),
}


async def test_a_lie_is_refused_in_a_short_sentence(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, _ = await signed_in(batch_site, monkeypatch)
    handle = await driver.start(SPEC)
    site = driver._login_nodes[KEY.uid, "hpc"][1]
    for lie, text in LIES.items():
        liar = Liar(text)
        driver._channels[KEY.uid, "hpc"], driver._login_nodes[KEY.uid, "hpc"] = liar, (liar, site)
        for doing in (driver.start(SPEC), driver.evidence(KEY, "x/stdout.log", 0, 10)):
            with pytest.raises(Refusal) as e:
                await doing
            assert (
                e.value.code == "agentUnavailable"
                and len(e.value.sentence) < 1000
                and e.value.sentence.isprintable()
            ), (lie, e.value.sentence[:300])
        found = await driver.find(handle)
        assert (
            found.state == "unknown"
            and not found.sign_in
            and len(found.detail) < 1000
            and found.detail.isprintable()
        ), lie


async def test_of_an_answer_only_what_is_known_is_on_record(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, _ = await signed_in(batch_site, monkeypatch)
    await driver.start(SPEC)
    liar = Liar(line({**GOOD, "more": "x" * 100_000}))
    driver._channels[KEY.uid, "hpc"] = liar
    driver._login_nodes[KEY.uid, "hpc"] = (liar, driver._login_nodes[KEY.uid, "hpc"][1])
    handle = await driver.start(SPEC)
    assert set(handle) == {
        "folder",
        "number",
        "pid",
        "startTicks",
        "bootId",
        "host",
        "key",
        "user",
    } and handle["folder"] == str(batch_site.folder())


@pytest.mark.parametrize("kind", ["pipe", "link"])
@pytest.mark.parametrize("name", ["job_agent.log", "lease/7"])
async def test_a_start_waits_for_no_pipe_and_follows_no_link(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    driver, _ = await signed_in(batch_site, monkeypatch)
    path = (batch_site.base if name.endswith(".log") else batch_site.folder()) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    other = batch_site.root / "other"
    other.write_text("not theirs")
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(other)
    try:
        await driver.start(SPEC)
    except Refusal as e:
        assert e.code == "agentUnavailable" and "did not end within" not in e.sentence, e.sentence
    assert other.read_text() == "not theirs"
