"""The code archive for agents on clusters: wheels are selected by tags; the archive is unpacked
completely or not at all, sent once, and kept while in use.
"""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from packaging.version import Version
from sbatch_agents import KEY, SPEC, SYSTEM_PYTHON, SbatchAgents, Ssh, made_ground

from jobscribe.agent.login_node import code_unpacker
from jobscribe.drivers.sbatch.login_node import code_archive, site
from jobscribe.drivers.sbatch.login_node.channel import CommandResult
from jobscribe.drivers.sbatch.login_node.wheel_tags import Python, best, fits
from jobscribe.protocol.clusters.cluster import Cluster
from jobscribe.protocol.errors import Refusal

pytestmark = pytest.mark.process

CP311 = Python(
    executable="/usr/bin/python3.11",
    implementation="cpython",
    version=(3, 11),
    machine="x86_64",
    libc="glibc 2.28",
)


# ---- tags


@pytest.mark.parametrize(
    ("tag", "there", "can"),
    [
        ("py3-none-any", {}, True),
        ("py2.py3-none-any", {}, True),
        ("py311-none-any", {}, True),
        ("py312-none-any", {}, False),
        ("py2-none-any", {}, False),
        ("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", {}, True),
        ("cp312-cp312-manylinux_2_17_x86_64", {}, False),
        ("cp311-cp311-manylinux_2_17_aarch64", {}, False),
        ("cp311-cp311-manylinux_2_17_x86_64", {"machine": "aarch64"}, False),
        ("cp311-cp311-manylinux_2_28_x86_64", {}, True),
        ("cp311-cp311-manylinux_2_34_x86_64", {}, False),
        ("cp311-cp311-manylinux_2_34_x86_64.manylinux_2_17_x86_64", {}, True),
        ("cp39-abi3-manylinux_2_5_x86_64.manylinux1_x86_64", {}, True),
        ("cp313-abi3-manylinux1_x86_64", {}, False),
        ("cp39-abi3-manylinux1_x86_64", {"version": (3, 14)}, True),
        ("cp311-cp311d-manylinux1_x86_64", {}, False),
        ("cp311-cp311-musllinux_1_2_x86_64", {}, False),
        ("cp311-cp311-musllinux_1_2_x86_64", {"libc": "musl 1.2"}, True),
        ("cp311-cp311-manylinux_2_17_x86_64", {"libc": "musl 1.2"}, False),
        ("cp311-cp311-manylinux_2_17_x86_64", {"libc": ""}, False),
        ("cp311-cp311-linux_x86_64", {}, False),
        ("cp311-cp311-manylinux_2_17_x86_64", {"implementation": "pypy"}, False),
        ("cp311-cp311-win_amd64", {}, False),
    ],
)
def test_which_tags_fit(tag: str, there: dict[str, Any], can: bool) -> None:
    assert fits(tag, msgspec.structs.replace(CP311, **there)) is can


def test_what_was_built_here_fits_where_the_c_library_is_the_same() -> None:
    assert fits("cp311-cp311-linux_x86_64", CP311, CP311)
    assert not fits(
        "cp311-cp311-linux_x86_64", CP311, msgspec.structs.replace(CP311, libc="glibc 2.36")
    )


def test_the_newest_wheel_that_fits_is_taken() -> None:
    names = [
        "msgpack-1.1.0-cp311-cp311-manylinux_2_17_x86_64.whl",
        "msgpack-1.10.0-cp311-cp311-manylinux_2_17_x86_64.whl",
        "msgpack-1.11.0-cp312-cp312-manylinux_2_17_x86_64.whl",
        "msgpack_numpy-2.0-py3-none-any.whl",
        "msgpack-9.tar.gz",
    ]
    assert best(names, "msgpack", CP311) == (Version("1.10.0"), names[1])


# ---- archive contents


def test_the_agents_side_and_its_three_packages_and_nothing_else() -> None:
    made = code_archive.build_code(code_archive.this_python(), Cluster(name="hpc"))
    tops = {name.split("/")[1] for name in made.sizes if name.startswith("jobscribe/")}
    assert tops == {*code_archive.OWN, "__init__.py", "py.typed"}
    assert {n.split("/")[0] for n in made.sizes if ".dist-info" not in n} == {
        "jobscribe",
        *code_archive.NEEDED,
    }
    assert not [n for n in made.sizes if n.endswith(".pyc") or "test/" in n]
    assert (
        code_archive.build_code(code_archive.this_python(), Cluster(name="hpc")).archive
        == made.archive
    )


def test_where_nothing_fits_the_sentence_says_which_python_which_packages_and_which_folder(
    tmp_path: Path,
) -> None:
    other = msgspec.structs.replace(
        code_archive.this_python(), version=(3, 13), executable="/opt/python"
    )
    for wheels, words in ((None, "names no folder `wheels`"), (str(tmp_path), str(tmp_path))):
        with pytest.raises(Refusal) as refused:
            code_archive.build_code(other, Cluster(name="hpc", wheels=wheels))
        for word in ("/opt/python", "cp313", "msgpack, msgspec", words):
            assert word in refused.value.sentence
    with pytest.raises(Refusal, match="cannot read the wheels"):
        code_archive.build_code(other, Cluster(name="hpc", wheels=str(tmp_path / "gone")))


def test_wheels_of_the_operator_are_unpacked(tmp_path: Path) -> None:
    other = msgspec.structs.replace(code_archive.this_python(), version=(3, 13))
    for name in ("msgpack", "msgspec"):
        with zipfile.ZipFile(
            tmp_path / f"{name}-1.9-cp313-cp313-manylinux_2_17_{other.machine}.whl", "w"
        ) as z:
            z.writestr(f"{name}/__init__.py", "x = 1\n")
    made = code_archive.build_code(other, Cluster(name="hpc", wheels=str(tmp_path)))
    assert made.sizes["msgpack/__init__.py"] == 6
    (tmp_path / f"msgpack-1.9-cp313-cp313-manylinux_2_17_{other.machine}.whl").rename(
        tmp_path / f"msgpack-0.9-cp313-cp313-manylinux_2_17_{other.machine}.whl"
    )
    with pytest.raises(Refusal, match="msgpack"):  # older than the agent's minimum
        code_archive.build_code(other, Cluster(name="hpc", wheels=str(tmp_path)))


# ---- unpacking


SIZES = {"a/b.py": 3, "c.py": 1}


def archive(files: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.type = len(data), kind
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def unpack(base: Path, data: bytes | None, digest: str = "d1") -> dict[str, Any]:
    request = {"base": str(base), "digest": digest, "sizes": SIZES, "sent": data is not None}
    ran = subprocess.run(
        [sys.executable, "-I", str(Path(code_unpacker.__file__))],
        input=json.dumps(request).encode() + b"\n" + (data or b""),
        capture_output=True,
        check=True,
    )
    answer = site._answer(CommandResult(0, ran.stdout, ran.stderr))
    assert answer is not None, ran
    return answer


GOOD = {"a/b.py": b"abc", "c.py": b"c"}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "base"


def test_code_lies_there_whole_or_not_at_all(base: Path) -> None:
    assert unpack(base, None) == {"have": False}
    whole = archive(GOOD)
    for cut in (0, 10, len(whole) // 2):
        assert "error" in unpack(base, whole[:cut]) and not list((base / "code").iterdir())
    assert "incomplete" in unpack(base, archive({"c.py": b"c"}))["error"]
    assert unpack(base, whole) == {"have": True} == unpack(base, None)
    assert (base / "code" / "d1" / "a" / "b.py").read_bytes() == b"abc"
    assert [p.name for p in (base / "code").iterdir()] == ["d1"]


def test_what_a_scratch_file_system_took_away_is_sent_again(base: Path) -> None:
    unpack(base, archive(GOOD))
    (base / "code" / "d1" / "c.py").unlink()
    assert unpack(base, None) == {"have": False}
    assert unpack(base, archive(GOOD)) == {"have": True}
    assert (base / "code" / "d1" / "c.py").exists()


@pytest.mark.parametrize(
    "files", [{**GOOD, "../x": b"x"}, {**GOOD, "/tmp/x": b"x"}, {**GOOD, "d.py": b"x"}]
)
def test_only_what_was_announced_is_unpacked(base: Path, files: dict[str, bytes]) -> None:
    assert "does not belong to the code" in unpack(base, archive(files))["error"]
    assert (
        "does not belong to the code"
        in unpack(base, archive({"c.py": b""}, tarfile.SYMTYPE))["error"]
    )


def test_nothing_is_put_where_others_can_write(base: Path) -> None:
    base.parent.chmod(0o777)
    assert "is writable by everybody" in unpack(base, archive(GOOD))["error"]
    base.parent.chmod(0o700)
    shutil.rmtree(base)
    base.mkdir(mode=0o777)
    base.chmod(0o777)
    assert unpack(base, archive(GOOD)) == {"have": True}
    assert base.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder away takes root: run as root")
def test_a_folder_of_somebody_else_is_refused(base: Path) -> None:
    base.mkdir()
    os.chown(base, 65534, 65534)
    assert "belongs to nobody" in unpack(base, archive(GOOD))["error"]
    os.chown(base, 0, 0)
    os.chown(base.parent, 65534, 65534)
    assert "belongs to nobody" in unpack(base, archive(GOOD))["error"]


def test_old_code_goes_when_nothing_needs_it(base: Path) -> None:
    unpack(base, archive(GOOD), "d0")
    for n in range(1, 8):
        shutil.copytree(base / "code" / "d0", base / "code" / f"d{n}")
    for n in range(8):
        os.utime(base / "code" / f"d{n}", (n, n))
    agent = base / "agent" / "sbatch.parallel.DriverU1@hpc"
    for path, text in {
        "started.json": '{"code": "d1"}',
        "batch/t1.json": "{}",
        "run/t1/batch.sh": "PYTHONPATH=/x/code/d2",
        "run/t2/batch.sh": "d3",
    }.items():
        (agent / path).parent.mkdir(parents=True, exist_ok=True)
        (agent / path).write_text(text)
    (base / "code" / "d9.login2-7.new").mkdir()
    unpack(base, archive(GOOD), "d8")
    left = {p.name for p in (base / "code").iterdir()}
    assert left == {"d1", "d2", "d6", "d7", "d8", "d9.login2-7.new"}


# ---- transfer and use


@pytest.fixture
async def batch_site() -> AsyncIterator[SbatchAgents]:
    async with made_ground() as made:
        yield made


async def signed_in(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> tuple[Any, Ssh]:
    channel = Ssh()

    async def connect(*_: Any) -> Ssh:
        return channel

    monkeypatch.setattr("jobscribe.drivers.sbatch.ssh.sign_in.connect", connect)
    driver = batch_site.driver(batch_site.cluster(access="ssh", **more))
    await driver.sign_in(KEY.uid, "hpc", object())
    return driver, channel


async def test_an_agent_runs_from_what_was_sent_and_it_is_sent_once(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, channel = await signed_in(batch_site, monkeypatch)
    handle = await driver.start(SPEC)
    (digest,) = (p.name for p in (batch_site.base / "code").iterdir())
    environment = Path(f"/proc/{handle['pid']}/environ").read_bytes()
    assert f"PYTHONPATH={batch_site.base}/code/{digest}\0".encode() in environment
    assert json.loads((batch_site.folder() / "started.json").read_text())["code"] == digest
    (agent,) = batch_site.agents()
    assert (
        str(batch_site.base / "code" / digest / "msgspec")
        in Path(f"/proc/{agent}/maps").read_text()
    )
    fed = sum("import sys;n=int" in argv for argv in channel.argvs)
    await driver.stop(handle, 1.0)
    await driver.stop(await driver.start(SPEC), 1.0)
    assert fed == sum("import sys;n=int" in argv for argv in channel.argvs) == 2, (
        "asked, sent; it was seen a moment ago"
    )
    monkeypatch.setattr("jobscribe.drivers.sbatch.driver._CODE_CHECK_SECS", 0.0)
    await driver.start(SPEC)
    assert sum("import sys;n=int" in argv for argv in channel.argvs) == 3, (
        "it may have been taken away since"
    )
    assert sum(argv.endswith("agent.login_node probe") for argv in channel.argvs) == 1, (
        "it was seen to work"
    )
    assert not any("import" in argv and "SecretToken" in argv for argv in channel.argvs)


async def test_code_that_cannot_be_imported_there_is_a_clear_sentence(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, _ = await signed_in(batch_site, monkeypatch)
    channel = driver._channel(KEY.uid, driver._clusters.clusters[0])
    await driver._login_node(KEY.uid, driver._clusters.clusters[0], channel)
    (damaged,) = batch_site.base.glob("code/*/msgspec/__init__.py")
    damaged.write_bytes(b"raise ImportError('damaged')".ljust(damaged.stat().st_size))
    os.utime(damaged, (0, 0))  # the compiled file no longer matches the source
    with pytest.raises(
        Refusal, match=r"ended right after its start.*damaged"
    ):  # a check succeeded a moment ago
        await driver.start(SPEC)
    with pytest.raises(Refusal, match=r"msgspec cannot be imported by /usr/bin/python3.*damaged"):
        await driver.start(SPEC)


async def test_a_python_that_is_too_old_or_not_there_is_named(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_site.command(
        "python3.4",
        'echo \'{"executable": "/x", "implementation": "cpython", "version": [3, 9], "machine": "x86_64", "libc": ""}\'',
    )
    batch_site.command("python3.5", 'echo "no licence for this" >&2; exit 3')
    driver, _ = await signed_in(
        batch_site, monkeypatch, pythons=("python3.4", "python3.5", "python9")
    )
    with pytest.raises(Refusal) as refused:
        await driver.start(SPEC)
    for words in (
        "3.11 or later",
        "python3.4: version 3.9",
        "python3.5: no licence for this",
        "python9: not found",
    ):
        assert words in refused.value.sentence
    assert not batch_site.base.exists()


async def test_the_first_python_that_is_new_enough_is_taken_and_a_login_may_print_what_it_likes(
    batch_site: SbatchAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_site.command("python7", f'echo "Welcome! {{"; exec {SYSTEM_PYTHON} "$@"')
    driver, _ = await signed_in(batch_site, monkeypatch, pythons=("nowhere", "python7"))
    assert await driver.evidence(KEY, "t1/stdout.log", 0, 1) == (
        b"",
        0,
    )  # the reply comes from the sent code in that Python
