"""The background measurement: real folders, a thread, and a file that survives a restart."""

import asyncio
import pathlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from in_memory_supervisor import InMemorySupervisor, until

from jobscribe.protocol.api.requests import RunSimulation, RunSpec
from jobscribe.protocol.clusters.queues import Queues, UserLimits
from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.ids import AgentKey, Token
from jobscribe.supervisor.files import disk_meter
from jobscribe.supervisor.files.disk_meter import DiskMeter
from jobscribe.supervisor.files.disk_usage import DiskUsage
from jobscribe.supervisor.files.uploads import Uploads
from jobscribe.supervisor.files.user_library import Library

MIB = 2**20
ANN, BOB = "user0001", "user0002"
KEY = AgentKey("local", "sequential", ANN, "localhost")

Make = Callable[[], DiskMeter]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_SECS", "AGAIN_SECS", "STORE_SECS", "COLLECT_SECS", "PART_SECS"):
        monkeypatch.setattr(disk_meter, name, 0.01)


@pytest.fixture
async def make(tmp_path: pathlib.Path) -> AsyncIterator[Make]:
    made = []

    def meter() -> DiskMeter:
        limits = UserLimits(disk_soft=2, disk_hard=4)
        usage = DiskUsage(Queues(limits=limits), str(tmp_path / "user"))
        said: list[str] = []
        log: Any = lambda form, *values: said.append(form.format(*values))
        out = DiskMeter(
            usage,
            log,
            tmp_path / "disk-usage.json",
            user_root=str(tmp_path / "user"),
            agents_root=str(tmp_path / "agent"),
            mono=time.monotonic,
            wall=time.time,
        )
        out.said = said  # type: ignore[attr-defined]
        made.append(out)
        return out

    yield meter
    for each in made:
        await each.close()


def write(path: pathlib.Path, mib: float) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * int(mib * MIB))
    return path


def uses(meter: DiskMeter, mib: float, uid: str = ANN) -> Callable[[], bool]:
    return lambda: mib * MIB <= meter.usage.used(uid) < (mib + 0.4) * MIB


async def test_everything_of_each_user_is_measured_and_a_restart_knows_it(
    make: Make, tmp_path: pathlib.Path
) -> None:
    write(tmp_path / f"user/{ANN}/heat/sim00001/command/out", 3)
    write(tmp_path / f"user/{ANN}/heat/lib/input", 1)
    evidence = write(tmp_path / f"agent/{KEY}/run/token/stdout", 1)
    write(tmp_path / f"user/{BOB}/heat/sim00001/command/out", 1)
    write(tmp_path / "user/not a user/file", 1)
    meter = make()
    meter.start()
    await until(uses(meter, 5), "Ann is measured")
    await until(uses(meter, 1, BOB), "Bob is measured")
    assert dict(meter.usage.users[ANN].largest).keys() == {"heat/sim00001", "heat/lib", "evidence"}
    assert meter.usage.users.keys() == {ANN, BOB}
    await until((tmp_path / "disk-usage.json").exists, "the sums are stored")
    await meter.close()
    evidence.unlink()
    again = make()
    again.start()
    assert uses(again, 5)() and again.refusal(ANN, None) is not None, "at once"
    await until(uses(again, 4), "it is measured again")
    (tmp_path / f"user/{ANN}/heat/sim00001/command/out").unlink()
    assert again.refusal(ANN, None) is not None
    await until(lambda: again.refusal(ANN, None) is None, "what was removed is seen soon")


async def test_a_damaged_file_is_made_anew(make: Make, tmp_path: pathlib.Path) -> None:
    (tmp_path / "disk-usage.json").write_bytes(b'{"user0001": 5}')
    write(tmp_path / f"user/{ANN}/heat/sim00001/out", 1)
    meter = make()
    meter.start()
    await until(uses(meter, 1), "Ann is measured")
    assert "is made anew" in meter.said[0]  # type: ignore[attr-defined]


async def test_an_upload_over_the_quota_is_refused_and_leaves_nothing(
    make: Make, tmp_path: pathlib.Path
) -> None:
    meter = make()
    meter.start()
    library = Library(str(tmp_path / "user"), limit=100 * MIB)
    uploads = Uploads(library, meter)
    first = await uploads.begin(ANN, "heat", "a", 3 * MIB)
    await first.take(b"x" * (3 * MIB))
    assert "the soft quota is 2.0 MiB" in (await first.finish())["quotaWarning"]
    first.abandon()
    assert meter.usage.used(ANN) >= 3 * MIB, "at once"
    with pytest.raises(Refusal, match=r"the upload needs 1\.5 MiB more"):
        await uploads.begin(ANN, "heat", "b", int(1.5 * MIB))
    unannounced = await uploads.begin(ANN, "heat", "c")
    with pytest.raises(Refusal, match="quotaExceeded"):
        for _ in range(3):
            await unannounced.take(b"x" * MIB)
    unannounced.abandon()
    await uploads.close()
    await until(lambda: not meter._parts and uses(meter, 3)(), "the library is measured")
    assert [f["name"] for f in await uploads.files(ANN, "heat")] == ["a"]
    await uploads.delete(ANN, "heat", "a")
    await until(uses(meter, 0), "the file is gone")


async def test_the_end_of_a_run_measures_its_folder_and_its_evidence_once(
    make: Make, tmp_path: pathlib.Path
) -> None:
    write(tmp_path / f"user/{ANN}/heat/sim00001/old", 1)
    meter = make()
    meter.start()
    await until(uses(meter, 1), "Ann is measured")
    token = Token(f"{ANN}-sim00001-command", 7, 1, "main", 0)
    write(tmp_path / f"user/{ANN}/heat/sim00001/command/out", 2)
    write(tmp_path / f"agent/{KEY}/run/{token.name}/stdout", 1)
    attempt = SimpleNamespace(tasks=(SimpleNamespace(token=token, agent_key=KEY),))
    spec = SimpleNamespace(simulation_type="heat")
    run = SimpleNamespace(serial=7, busy=True, attempts=(attempt,), spec=spec)
    job: Any = SimpleNamespace(jid=token.jid, run=run)
    meter.ended(job)
    assert not meter._parts, "it has not ended"
    run.busy = False
    for _ in range(2):
        meter.ended(job)
        await until(uses(meter, 4), "simulation and evidence are counted")
        await until(lambda: not meter._parts, "nothing is left to measure")
    run.serial = 8
    meter.ended(job)
    await until(uses(meter, 5), "the evidence of another run is added")


async def test_the_folder_of_an_array_is_measured_at_intervals_not_at_each_end(
    make: Make, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_meter, "PART_SECS", 0.5)
    walked: list[object] = []
    real = disk_meter.Walk.size

    def size(self: disk_meter.Walk, base: str, parts: Sequence[str]) -> disk_meter.Size:
        walked.append(parts)
        return real(self, base, parts)

    monkeypatch.setattr(disk_meter.Walk, "size", size)
    write(tmp_path / f"user/{ANN}/heat/sim00001/old", 1)
    meter = make()
    meter.start()
    await until(uses(meter, 1), "Ann is measured")
    walked.clear()
    begun = time.monotonic()
    for _ in range(20):
        meter.changed(ANN, "heat/sim00001")
        await asyncio.sleep(0.01)
    write(tmp_path / f"user/{ANN}/heat/sim00001/new", 2)
    meter.changed(ANN, "heat/sim00001")
    await until(uses(meter, 3), "the last change is measured, too")
    assert len(walked) <= 1 + (time.monotonic() - begun) / 0.5 + 1
    await until(lambda: not meter._parts, "nothing is left to measure")


async def test_a_user_at_the_hard_quota_starts_nothing_new(
    make: Make, tmp_path: pathlib.Path
) -> None:
    """The request of a run that exists is answered as before."""
    in_memory = InMemorySupervisor()
    meter = make()
    meter.start()
    in_memory.desk.quota_refusal = meter.refusal
    in_memory.desk.quota_warning = meter.usage.warning
    write(tmp_path / f"user/{ANN}/heat/sim00009/out", 0.1)
    await until(uses(meter, 0.1), "Ann is measured")
    spec = RunSpec(
        uid=ANN, simulation_id="sim00001", simulation_type="heat", data={}, driver="local"
    )
    request = RunSimulation(req_id="request-1", run=spec)
    submitted = asyncio.create_task(in_memory.desk.submit(request))
    await until(lambda: in_memory.started, "the agent is asked for")
    reply = await submitted
    assert "quotaWarning" not in reply
    write(tmp_path / f"user/{ANN}/heat/sim00001/{spec.compute_model}/out", 5)
    meter.changed(ANN, "heat/sim00001")
    await until(uses(meter, 5.1), "the simulation is measured")
    assert (await in_memory.desk.submit(request))["computeJid"] == reply["computeJid"]
    other = RunSimulation(
        req_id="request-2",
        run=RunSpec(
            uid=ANN, simulation_id="sim00002", simulation_type="heat", data={}, driver="local"
        ),
    )
    with pytest.raises(Refusal, match="quotaExceeded"):
        await in_memory.desk.submit(other)
    assert in_memory.engine.durable(f"{ANN}-sim00002-{spec.compute_model}") is None
    (refused,) = await in_memory.desk.submit_each([other])
    assert refused["code"] == "quotaExceeded" and "rm -r" in refused["error"]
    (tmp_path / f"user/{ANN}/heat/sim00001/{spec.compute_model}/out").unlink()
    write(tmp_path / f"user/{ANN}/heat/sim00001/{spec.compute_model}/out", 3)
    meter.changed(ANN, "heat/sim00001")
    await until(uses(meter, 3.1), "less is there now")
    (accepted,) = await in_memory.desk.submit_each([other])
    assert "soft quota is 2.0 MiB" in accepted["quotaWarning"]


@pytest.mark.parametrize("turns", range(4))
async def test_a_change_just_before_the_end_delays_no_end(
    make: Make, tmp_path: pathlib.Path, turns: int
) -> None:
    write(tmp_path / f"user/{ANN}/heat/sim00001/old", 1)
    meter = make()
    meter.start()
    await until(uses(meter, 1), "Ann is measured")
    await until((tmp_path / "disk-usage.json").exists, "the sums are stored")
    meter.changed(ANN, "heat/sim00001")
    for _ in range(turns):
        await asyncio.sleep(0)
    ended, _ = await asyncio.wait({asyncio.create_task(meter.close())}, timeout=5)
    assert ended
