"""The file of queues is read, or all its errors are reported with their lines."""

import pathlib
from collections.abc import Callable

import msgspec
import pytest

from jobscribe.protocol.clusters.queues import Queue, Queues, UserLimits
from jobscribe.protocol.errors import Refusal
from jobscribe.service.settings.settings import LimitSettings, QueueSettings, Settings
from jobscribe.service.site import queue_file, startup_checks

ROOT = pathlib.Path(__file__).resolve().parents[4]
Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: pathlib.Path) -> Write:
    def write(text: str) -> str:
        path = tmp_path / "queues.yml"
        path.write_text(text)
        return str(path)

    return write


def told(path: str) -> list[str]:
    queues, found = queue_file.read(path)
    assert queues is None and {f.code for f in found} == {"badConfig"}
    return [f.sentence.replace(path, "F") for f in found]


def test_without_a_file_everybody_has_one_queue_and_no_limit():
    queues = queue_file.load(None)
    assert queues == Queues() and list(queues.all) == ["default"]
    assert queues.of("user0001", None) == "default"
    assert queues.limits_of("free") == UserLimits()


def test_the_example_is_valid_and_names_every_key():
    path = ROOT / "etc/queues.example.yml"
    queues = queue_file.load(str(path))
    assert queues.queues["physics"] == Queue(share=3.0, plans=("physics",))
    everybody = UserLimits(
        running=64, queued=10_000, total_cores=256, disk_soft=80 * 1024, disk_hard=100 * 1024
    )
    assert queues.limits_of("free") == msgspec.structs.replace(
        everybody, running=2, queued=100, cores=8, gpus=0, sequential=3600.0, parallel=14400.0
    )
    assert queues.limits_of("other") == everybody
    assert queues.limits_of("other", "p1Kq8rTz") == msgspec.structs.replace(
        everybody, gpu_hours=2000.0, disk_hard=2**20
    )
    text = path.read_text() + (ROOT / "docs/queues.md").read_text()
    for type_ in (Queues, Queue, UserLimits):
        for field in type_.__struct_encode_fields__:
            assert f"`{field}`" in text and f"{field}:" in text


def test_a_user_or_plan_that_a_queue_names_uses_it():
    queues = Queues(
        queues={
            "open": Queue(),
            "named": Queue(users=("user0001",)),
            "paid": Queue(plans=("paid",)),
        }
    )
    assert queues.of("user0001", None) == "named"
    assert queues.of("user0002", "paid") == "paid"
    assert queues.of("user0002", None) == "default"
    assert queues.queues["open"].admits("user0002", None)
    assert not queues.queues["paid"].admits("user0002", "free")


def test_all_problems_are_reported_with_their_lines(write: Write):
    path = write(
        "queues:\n  default: {users: [user0001]}\n  Big: {share: 0}\n"
        "limits: {running: 0, queue: 3}\nhalfLife: never\n"
    )
    found = told(path)
    assert [f.partition(":")[0] for f in found] == ["F"] * len(found)
    for part in (
        "everybody may use the queue `default`",
        "Big",
        "share",
        "running",
        "queue",
        "halfLife",
    ):
        assert any(part in f for f in found), (part, found)


def test_a_default_time_limit_over_the_limit_of_users_is_a_contradiction(write: Write):
    path = write("limits: {sequential: 1h}\nplans:\n  long: {sequential: 3h}\n")
    settings = Settings(
        queues=QueueSettings(file=path), limits=LimitSettings(time_limit_secs=7200.0)
    )
    found = [f.sentence for f in startup_checks.problems(settings) if path in f.sentence]
    assert found == [
        f"limits.time_limit_secs is 7200 s (the default), and limits.sequential in {path} allows 3600 s: lower one or raise the other"
    ]


def test_a_missing_file_is_said():
    with pytest.raises(Refusal, match="nowhere"):
        queue_file.load("/nowhere/queues.yml")


def test_limits_that_contradict_each_other_are_reported_with_both_places(write: Write):
    path = write(
        "limits: {totalCores: 64, totalGpus: 2}\n"
        "plans:\n"
        "  big: {cores: 128}\n"
        "  fit: {cores: 128, totalCores: 128}\n"
        "users:\n"
        "  user0001: {gpus: 3, diskSoft: 2GB, diskHard: 1GB}\n"
    )
    assert told(path) == [
        "F:3: plans.big.cores: it is 128, and limits.totalCores is 64 for the same user; right: at most 64, or a higher limits.totalCores",
        "F:6: users.user0001.gpus: it is 3, and limits.totalGpus is 2 for the same user; right: at most 2, or a higher limits.totalGpus",
        "F:6: users.user0001.diskSoft: it is 2048, and users.user0001.diskHard is 1024 for the same user; right: at most 1024, or a higher users.user0001.diskHard",
    ]


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("totalCores: 0", "totalCores"),
        ("totalCores: many", "a whole number"),
        ("totalMemory: 5 apples", "MB as a number"),
        ("gpuHours: -1", "gpuHours"),
        ("coreHours: .nan", "coreHours"),
        ("diskHard: 0", "diskHard"),
        ("disk: 5GB", "disk"),
    ],
)
def test_a_wrong_limit_is_named(write: Write, limit: str, said: str):
    (found,) = told(write(f"limits: {{{limit}}}\n"))
    assert said in found
