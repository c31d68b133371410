"""Disk quotas: sums of parts, refusals and warnings with the numbers, uploads, and the stored file."""

import random
from typing import Any

import pytest

from jobscribe.protocol.clusters.queues import Queues, UserLimits
from jobscribe.protocol.errors import Refusal
from jobscribe.supervisor.files import disk_usage
from jobscribe.supervisor.files.disk_usage import DiskUsage, amount, reports
from jobscribe.supervisor.files.disk_walk import Size

MIB = 2**20
ANN, BOB = "user0001", "user0002"


def usage(**limits: Any) -> DiskUsage:
    plans = {"free": UserLimits(disk_hard=1)}
    return DiskUsage(Queues(limits=UserLimits(**limits), plans=plans), "/users")


def mib(n: float) -> Size:
    return Size(int(n * MIB), 1)


def filled(**limits: Any) -> DiskUsage:
    out = usage(**limits)
    parts = {"heat/sim00001": mib(3), "heat/lib": mib(4), "evidence": mib(1)}
    out.measured(ANN, parts, mib(0.5), 100.0)
    return out


@pytest.mark.parametrize(
    ("limits", "state"),
    [
        ({}, "ok"),
        ({"disk_soft": 9, "disk_hard": 10}, "ok"),
        ({"disk_soft": 8, "disk_hard": 10}, "soft"),
        ({"disk_soft": 8}, "soft"),
        ({"disk_soft": 5, "disk_hard": 8}, "hard"),
    ],
)
def test_all_parts_of_a_user_count(limits: dict[str, int], state: str) -> None:
    disk = filled(**limits)
    report = disk.report(ANN)
    assert (report["usedBytes"], report["state"]) == (int(8.5 * MIB), state)
    assert (disk.refusal(ANN, None) is None) == (state != "hard")
    assert (disk.warning(ANN) is None) == (state == "ok")
    assert disk.refusal(BOB, None) is None and disk.warning(BOB) is None


def test_a_refusal_names_the_numbers_and_what_to_remove() -> None:
    refusal = filled(disk_hard=8).refusal(ANN, None)
    assert refusal is not None and (refusal.code, refusal.http) == ("quotaExceeded", 403)
    assert refusal.sentence == (
        "the files of user user0001 use 8.5 MiB of 8.0 MiB; the largest are heat/lib 4.0 MiB,"
        " heat/sim00001 3.0 MiB, evidence 1.0 MiB; remove what is not needed,"
        " for example: jobscribe job purge sim00001"
        " (on the site's machine also: rm -r /users/user0001/heat/sim00001)"
    )
    assert refusal.more["usedBytes"] == int(8.5 * MIB) and refusal.more["hardBytes"] == 8 * MIB
    assert refusal.body()["retry"] is False


def test_a_warning_names_the_soft_and_the_hard_quota() -> None:
    warning = filled(disk_soft=8, disk_hard=10).warning(ANN)
    assert warning is not None and warning.startswith(
        "the files of user user0001 use 8.5 MiB, and the soft quota is 8.0 MiB"
        " (from 10.0 MiB on, new runs are refused); the largest are heat/lib 4.0 MiB"
    )


def test_the_plan_of_the_last_request_decides_also_for_uploads() -> None:
    disk = usage()
    disk.measured(ANN, {"heat/sim00001": mib(2)}, Size(), 0.0)
    assert disk.refusal(ANN, None) is None
    assert disk.refusal(ANN, "free") is not None
    with pytest.raises(Refusal, match="the upload needs 5 B more"):
        disk.reserve(ANN, 5)
    assert disk.refusal(ANN, None) is None, "a lowered quota is gone with the plan"


def test_uploads_in_progress_count_and_a_stored_file_counts_at_once() -> None:
    disk = filled(disk_hard=10)
    disk.reserve(ANN, MIB)
    with pytest.raises(Refusal) as refused:
        disk.reserve(ANN, MIB)
    assert "use 9.5 MiB of 10.0 MiB, and the upload needs 1.0 MiB more" in refused.value.sentence
    disk.reserve(ANN, MIB // 2)
    disk.unreserve(ANN, MIB // 2)
    disk.grow(ANN, "heat/lib", mib(1))
    disk.unreserve(ANN, MIB)
    assert disk.used(ANN) == int(9.5 * MIB)
    disk.grow(ANN, "other/lib", mib(1))
    assert disk.refusal(ANN, None) is not None, "of an app without a known library, too"


def test_one_part_is_replaced_where_it_is_known_and_never_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk_usage, "MAX_PARTS", 3)
    disk = filled()
    assert disk.measured_part(ANN, "heat/sim00001", mib(1))
    assert disk.used(ANN) == int(6.5 * MIB)
    assert not disk.measured_part(ANN, "heat/sim00002", mib(1)), "it may be in the rest"
    assert not disk.measured_part(BOB, "heat/sim00001", mib(1)), "he is not measured yet"
    disk.measured(ANN, {f"heat/sim{n}": mib(n) for n in range(1, 6)}, Size(), 200.0)
    assert disk.used(ANN) == 15 * MIB and len(disk.users[ANN].parts) == 3


def test_the_sums_survive_a_restart_and_parts_are_measured_again() -> None:
    disk = filled(disk_hard=8)
    disk.refusal(ANN, "free")
    again = usage(disk_hard=8)
    again.restore(disk.stored())
    assert again.used(ANN) == disk.used(ANN) and again.users[ANN].plan == "free"
    assert again.refusal(ANN, "free") is not None
    assert not again.measured_part(ANN, "heat/sim00001", mib(1))
    again.measured(ANN, {"heat/sim00001": mib(1)}, Size(), 300.0)
    assert again.used(ANN) == MIB


def test_reports_and_metrics_have_totals() -> None:
    disk = filled(disk_soft=5, disk_hard=8)
    disk.measured(BOB, {"heat/sim00001": mib(6)}, Size(), 0.0)
    assert [(r["user"], r["state"]) for r in reports(disk, (BOB, ANN))] == [
        (ANN, "hard"),
        (BOB, "soft"),
    ]
    assert disk.counted() == {"bytes": int(14.5 * MIB), "files": 5, "soft": 1, "hard": 1}
    disk.forget(ANN)
    assert disk.counted()["hard"] == 0 and disk.report(ANN)["complete"] is False


def test_amounts_are_readable() -> None:
    assert [amount(n) for n in (0, 1023, 1536, 3 * MIB, 5 * 2**40, 5 * 2**50)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 MiB",
        "5.0 TiB",
        "5120.0 TiB",
    ]


def test_the_sum_is_that_of_all_parts_whatever_changes() -> None:
    disk, chance = filled(), random.Random(7)
    for _ in range(300):
        part = chance.choice(("heat/sim00001", "heat/lib", "evidence", "heat/other"))
        size = Size(chance.randrange(1000), chance.randrange(9), chance.random() > 0.1)
        chance.choice((disk.measured_part, disk.grow))(ANN, part, size)
        assert disk._totals[ANN] == disk.users[ANN].total
