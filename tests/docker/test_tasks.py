"""Tasks in containers of a real daemon: the init script as process 1 with the shells of several
images, and recovery after a restart.
"""

import asyncio
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from docker_hosts import BASE, BUSYBOX, NOSHELL, Host, Hosts
from docker_tasks import KEY, Life, token_of

from jobscribe.protocol.ids import Token, op_id
from jobscribe.protocol.wire.messages import Samples, Shared, TaskRun

New = Callable[..., Coroutine[Any, Any, Life]]
#: Each test takes a second or two on a busy machine.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def new_life(pool: Hosts, host_a: Host) -> AsyncIterator[New]:
    root = Path(tempfile.mkdtemp(prefix="rtasks-", dir="/var/tmp"))
    root.chmod(0o755)
    lives: list[Life] = []

    async def new(**pool: Any) -> Life:
        while lives:
            await lives.pop().close()
        lives.append(
            Life(
                root,
                f"unix://{host_a.sock}",
                image=BASE,
                deployment=f"rt{root.name[-6:].lower().replace('_', '0')}",
                **pool,
            )
        )
        return await lives[-1].open()

    try:
        yield new
    finally:
        deployment = lives[-1].deployment if lives else ""
        for life in lives:
            await life.close()
        await asyncio.to_thread(host_a.clear, [deployment])
        shutil.rmtree(root)


@pytest.fixture
async def life(new_life: New) -> Life:
    return await new_life()


async def text(life: Life, token: Token, name: str = "stdout.log") -> str:
    return (await life.tasks.evidence(KEY, token, name, 0, 100_000))[0].decode()


@pytest.mark.parametrize("image", [BASE, BUSYBOX])
async def test_exits_are_told_from_signals_with_every_shell(life: Life, image: str) -> None:
    """All run at once, independently."""
    asked = {
        life.launch("/bin/sh", "-c", script, box={"image": image, "memory_mb": 32}): expected
        for script, expected in (
            ("exit 7", (7, None, 0)),
            ("exit 137", (137, None, 0)),
            ("kill -9 $$", (None, 9, 0)),
            ("kill -15 $$", (None, 15, 0)),
            ("kill -9 $PPID", (None, 9, 0)),
            ("sleep 300 & sleep 300 & exit 0", (0, None, 2)),
            ("kill -TERM 1; sleep 300", (None, 15, 0)),
        )
    }
    got = {}
    for token in asked:
        exit_ = await life.end_of(token)
        # after a stop of the whole group, its sleep may be visible a moment longer
        got[token] = exit_.code, exit_.signal, exit_.survivors_killed if exit_.signal is None else 0
    assert got == asked


@pytest.mark.parametrize("image", [BASE, BUSYBOX])
async def test_what_a_task_finds(life: Life, image: str) -> None:
    """Its environment comes from the image and the contract. Its output, user, signals and
    directory are its own.
    """
    token = life.launch(
        "/bin/sh",
        "-c",
        "echo to err >&2; pwd; echo $PATH; cat /proc/self/oom_score_adj; cat /proc/self/status; touch here; echo $MINE >&2",
        env={"MINE": "it's"},
        box={"image": image},
    )
    assert (await life.end_of(token)).code == 0
    pwd, path, victim, *status = (await text(life, token)).splitlines()
    words = dict(line.split(None, 1) for line in status if " " in line or "\t" in line)
    assert pwd == life.spec(token).run_dir and "/bin" in path.split(":") and victim == "500"
    assert (
        words["Uid:"].split() == ["200000"] * 4
        and words["CapEff:"] == "0" * 16
        and words["NoNewPrivs:"] == "1"
    )
    assert await text(life, token, "stderr.log") == "to err\nit's\n"
    assert (Path(pwd) / "here").exists() and (
        Path(pwd) / ".jobscribe" / "latest"
    ).readlink() == life.evidence(token)
    if image == BASE:
        # signals 32 and 33 of the C library are inherited from the daemon's parents
        assert int(words["SigIgn:"], 16) & 0x7FFFFFFF == 0, (
            "a shell's background jobs ignore SIGINT; a task does not"
        )


async def test_an_image_without_a_shell_is_said(life: Life) -> None:
    exit_ = await life.end_of(life.launch("true", box={"image": NOSHELL}))
    assert (exit_.source, exit_.fault) == ("start", "noShell") and "/bin/sh" in (exit_.detail or "")


@pytest.mark.parametrize("image", [BASE, BUSYBOX])
async def test_a_stop_reaches_everything_and_its_grace_is_kept(life: Life, image: str) -> None:
    meek = life.launch(
        "/bin/sh",
        "-c",
        "(trap 'sleep 0.5; echo child; exit' TERM; echo on; while :; do sleep 0.1; done) & wait",
        box={"image": image},
        grace_secs=30.0,
    )
    stubborn = life.launch(
        "/bin/sh", "-c", "trap '' TERM; echo on; while :; do sleep 0.1; done", box={"image": image}
    )
    for token in (meek, stubborn):
        await life.reported(token, "running")
    for token in (meek, stubborn):
        said = life.evidence(token) / "stdout.log"
        await life.until(lambda said=said: said.exists() and said.read_text(), "it is on")  # type: ignore[misc]
    life.tasks.stop(KEY, meek, "cancel", 30.0)
    life.tasks.stop(KEY, stubborn, "cancel", 0.5)
    soft, hard = await life.end_of(meek), await life.end_of(stubborn)
    assert (soft.signal, soft.stop_reason, hard.signal, hard.stop_reason) == (
        15,
        "cancel",
        9,
        "cancel",
    )
    assert await text(life, meek) == "on\nchild\n"


async def test_a_limit_holds_while_no_supervisor_is_there_and_what_ended_is_found(
    new_life: New, host_a: Host
) -> None:
    life = await new_life()
    late, good = (
        life.launch("sleep", "600", time_limit_secs=0.5),
        life.launch("/bin/sh", "-c", "sleep 0.5; exit 3"),
    )
    for token in (late, good):
        await life.reported(token, "running")
    await life.close()
    deadline = asyncio.get_running_loop().time() + 60
    while await asyncio.to_thread(
        host_a.containers, f"jobscribe.deployment={life.deployment}", running=True
    ):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.1)
    life = await new_life()
    assert ((await life.end_of(late)).stop_reason, (await life.end_of(good)).code) == (
        "timeLimit",
        3,
    )
    life.tasks.settle(KEY, (late, good))
    await life.until(
        lambda: not list((life.root / "agent" / str(KEY) / "ledger").iterdir()), "both are settled"
    )
    assert not await asyncio.to_thread(host_a.containers, f"jobscribe.deployment={life.deployment}")


async def test_memory_that_runs_out_is_known_and_a_job_that_survives_it_succeeds(
    life: Life,
) -> None:
    eater = "x=x; while :; do x=$x$x; done"
    dead = life.launch("/bin/sh", "-c", eater, box={"memory_mb": 24})
    survivor = life.launch("/bin/sh", "-c", f"/bin/sh -c '{eater}'; exit 0", box={"memory_mb": 24})
    killed, fine = await life.end_of(dead), await life.end_of(survivor)
    assert (killed.signal, killed.out_of_memory, fine.code, fine.out_of_memory) == (
        9,
        True,
        0,
        True,
    )


async def test_a_gang_sees_itself_and_nothing_else(life: Life, host_a: Host) -> None:
    tokens = [Token(f"{KEY.uid}-gang0001-command", 1, 1, "w", n) for n in range(2)]
    script = (
        'read line <job.json; echo "$line"; [ $JOBSCRIBE_TASK_INDEX = 1 ] || { echo here | nc -l -p 30000; exit; }; '
        "until nc 10.213.4.2 30000 </dev/null; do sleep 0.1; done"
    )
    runs = [
        TaskRun(
            op_id=op_id(t, "run"),
            token=t,
            spec=life.spec(
                t,
                "busybox",
                "sh",
                "-c",
                script,
                box={"subnet": "10.213.4.0/22", "address": f"10.213.4.{2 + n}", "memory_mb": 32},
            ),
        )
        for n, t in enumerate(tokens)
    ]
    life.tasks.launch_gang(KEY, Shared(env={}, job='{"job": 1}\n'), runs)
    for token in tokens:
        assert (await life.end_of(token)).code == 0
    said = (await text(life, tokens[1])).splitlines()
    assert said == ['{"job": 1}', "here"]
    mark = f"label=jobscribe.deployment={life.deployment}"
    await life.until(
        lambda: not host_a.docker("network", "ls", "-q", "--filter", mark).strip(),
        "the network is gone",
    )


async def test_a_daemon_that_was_killed_loses_nothing(life: Life, host_a: Host) -> None:
    """Containers run on without it. Ends during the outage are found, and no container is created
    twice.
    """
    runs, ends = life.launch("sleep", "600"), life.launch("/bin/sh", "-c", "sleep 1; exit 5")
    for token in (runs, ends):
        await life.reported(token, "running")
    await asyncio.to_thread(host_a.crash)
    await life.until(lambda: not life.is_up, "the place is down")
    await life.until(lambda: (life.evidence(ends) / "exit-code").exists(), "it ended meanwhile")
    await asyncio.to_thread(host_a.start)
    assert (await life.end_of(ends)).code == 5
    await life.until(lambda: life.is_up, "the place is up")
    assert (await life.snapshot())[runs].state == "running"
    life.tasks.stop(KEY, runs, "cancel", 5.0)
    assert (await life.end_of(runs)).stop_reason == "cancel"


async def test_output_is_capped_while_it_runs_and_samples_are_told(life: Life) -> None:
    token = life.launch(
        "/bin/sh", "-c", "head -c 30000000 /dev/zero; touch done; while :; do :; done"
    )
    log = life.evidence(token) / "stdout.log"
    await life.until(lambda: (Path(life.spec(token).run_dir) / "done").exists(), "it wrote all")
    await life.until(lambda: log.stat().st_blocks * 512 <= 1 << 20, "the middle is given back")
    assert (
        log.stat().st_size == 30_000_000
        and json.loads((life.evidence(token) / "stdout.log.dropped").read_text())["from"] == 65_536
    )
    samples = await life.until(
        lambda: [
            s
            for m in life.heard
            if isinstance(m, Samples)
            for s in m.samples
            if (s.cpu_secs or 0) > 0.1
        ],
        "a sample",
        60,
    )
    assert samples[-1].token == token and samples[-1].memory_bytes and samples[-1].processes
    life.tasks.stop(KEY, token, "cancel", 0.0)
    assert (await life.end_of(token)).dropped_bytes > 29_000_000


async def test_a_container_that_is_started_by_hand_again_does_nothing(
    life: Life, host_a: Host
) -> None:
    token = token_of()
    life.launch("/bin/sh", "-c", "echo ran", token=token)
    await life.end_of(token)
    (name,) = await asyncio.to_thread(host_a.containers, f"jobscribe.deployment={life.deployment}")
    await asyncio.to_thread(host_a.docker, "start", "-a", name, code=125)
    assert await text(life, token) == "ran\n"
