"""The profile option of a run, and the names of files of profiles."""

import msgspec
import pytest

from jobscribe.protocol.api.requests import RunSpec
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import Token
from jobscribe.protocol.jobs import profiling
from jobscribe.protocol.jobs.profiling import TOOLS, Profile

BASE = "a/jobscribe-profiles/17-1-main-0/"


@pytest.mark.parametrize(("kind", "tools"), TOOLS.items())
def test_each_kind_has_tools_and_a_default(kind: str, tools: tuple[str, ...]) -> None:
    for text, tool in ((kind, tools[0]), *((f"{kind}={t}", t) for t in tools)):
        assert profiling.option(text) == Profile(kind, tool)  # type: ignore[arg-type]
        profiling.check(text, allowed=True, in_containers=False)
        data = {"uid": "SystemU1", "simulationId": "s1234567", "profile": text}
        assert msgspec.convert(data, RunSpec).profile == text
        for tool in (t for t in (text.replace("=", "-"),) if "=" in text):
            assert tool in profiling.OVERHEAD


def test_other_options_are_refused_by_the_request_and_by_the_command_line() -> None:
    for text in ("", "disk", "cpu=", "cpu=perf", "gpu=nsys", "mem=process", "cpu\n"):
        assert profiling.option(text) is None
        data = {"uid": "SystemU1", "simulationId": "s1234567", "profile": text}
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(data, RunSpec)
    profiling.check(msgspec.UNSET, allowed=False, in_containers=True)


@pytest.mark.parametrize(
    ("allowed", "in_containers", "code", "words"),
    [
        (False, False, "forbidden", "profiler.allowed"),
        (True, True, "badRequest", "needs an agent beside the job"),
    ],
)
def test_a_site_without_profiles_or_a_place_without_an_agent_says_so(
    allowed: bool, in_containers: bool, code: str, words: str
) -> None:
    for text in ("cpu=py-spy", "gpu"):
        with pytest.raises(Refusal, match=words) as e:
            profiling.check(text, allowed=allowed, in_containers=in_containers)
        assert e.value.code == code
    if allowed:
        for text in ("cpu", "cpu=cprofile", "mem", "mem=memray"):
            profiling.check(text, allowed=True, in_containers=True)


def test_names_of_files_are_read_and_others_are_ignored() -> None:
    token = Token("SystemU1-s1-command", 17, 1, "main", 0)
    assert f"a/{profiling.task_folder(token)}/" == BASE
    found = profiling.artifact(BASE + "cpu-sampler-12-345-train.py.collapsed")
    assert found is not None
    assert (found.tool, found.pid, found.program, found.ending) == (
        "cpu-sampler",
        12,
        "train.py",
        "collapsed",
    )
    child = profiling.artifact(BASE + "mem-memray-12-345--c.bin.99")
    assert child is not None and (child.pid, child.program) == (99, "-c")
    note = profiling.artifact(BASE + "unavailable-mem-memray.txt")
    assert note is not None and note.note and note.tool == "mem-memray"
    for name in (
        "cpu-sampler-12-345-x.collapsed",
        BASE + "other.txt",
        BASE + "cpu-sampler-12-345-x.html",
        BASE + "cpu-sampler-12-345-x y.collapsed",
        "jobscribe-profiles/x/mem-samples.dat",
        "mem-samples.dat",
        "",
    ):
        assert profiling.artifact(name) is None, name
