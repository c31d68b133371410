"""Copies between local folders and run directories, on a real supervisor with real agents, over a
connection that breaks.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cutting_relay import Relay
from supervisor_process import UID, SupervisorProcess, jid_of, shell, until

from jobscribe.client.api.errors import ClientError
from jobscribe.client.sync_client import Client

OTHER_UID = "SystemU2"
BIG = 40 * 1024 * 1024


@pytest.fixture
def site() -> Iterator[SupervisorProcess]:
    site = SupervisorProcess(("limits.upload_bytes=50000000",))
    try:
        yield site.start()
        assert "Traceback" not in site.log()
    finally:
        left = site.end()
    assert left == {}


@pytest.fixture
def relay(site: SupervisorProcess) -> Iterator[Relay]:
    relay = Relay(site.url)
    yield relay
    relay.close()


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_files_are_copied_both_ways_over_a_connection_that_breaks(
    site: SupervisorProcess, relay: Relay, tmp_path: Path
) -> None:
    run = shell(
        "mkdir -p out/deep; head -c 41943040 /dev/urandom > out/big; echo 1 > out/deep/one; ln -s /etc out/etc"
    )
    assert site.finished(run)["state"] == "completed"
    jid = jid_of(run)
    with Client(relay.url, site.token, UID) as client:
        check_copies(site, relay, client, jid, tmp_path)


def check_copies(
    site: SupervisorProcess, relay: Relay, client: Client, jid: str, tmp_path: Path
) -> None:
    run_dir = Path(client.status(jid).run_dir or "")
    names = [f["name"] for f in client.files(jid)]
    assert names == ["out/big", "out/deep/one"]

    # get: the connection is cut twice, and the copy continues
    relay.cut_after = [10_000_000, 5_000_000]
    progress: list[tuple[int, int]] = []
    copied = client.get_files(
        jid, names, tmp_path / "here", on_progress=lambda *now: progress.append(now)
    )
    assert [(t.name, t.code, t.error) for t in copied] == [(n, "", "") for n in names]
    assert relay.cut_after == [] and tree(tmp_path / "here") == tree(run_dir)
    assert relay.passed < 1.5 * BIG, "it began again instead of continuing"
    assert [t.note for t in client.get_files(jid, names, tmp_path / "here")] == [
        "it is here already"
    ] * 2

    # an earlier copy is continued only as far as the file is the same
    (part,) = (name for name in ("out/big",))
    other = tmp_path / "other" / "out"
    other.mkdir(parents=True)
    from jobscribe.client.transfers.local_files import part_name

    big = (run_dir / part).read_bytes()
    (other / part_name("big")).write_bytes(b"x" + big[1 : BIG // 2])
    (again,) = client.get_files(jid, [part], tmp_path / "other")
    assert again.code == "" and (other / "big").read_bytes() == big
    assert os.listdir(other) == ["big"]

    # put: a folder, over a connection that is cut
    relay.cut_after, relay.passed = [10_000_000], 0
    back = {f"in/{n}": tmp_path / "here" / n for n in names}
    assert [(t.name, t.error) for t in client.put_files(jid, back)] == [(n, "") for n in back]
    assert relay.cut_after == [] and relay.passed < 1.5 * BIG
    assert tree(run_dir / "in") == tree(tmp_path / "here")
    assert sorted(p.name for p in (run_dir / "in" / "out").iterdir()) == ["big", "deep"]

    # what is there is kept, and a file outside is not reached
    (tmp_path / "new").write_text("new")
    put = client.put_files(
        jid,
        {
            "in/out/deep/one": tmp_path / "new",
            "out/etc/new": tmp_path / "new",
            "../new": tmp_path / "new",
            "a/.jobscribe/new": tmp_path / "new",
            "fine": tmp_path / "new",
        },
    )
    assert [t.code for t in put] == ["conflict", "notFound", "badRequest", "badRequest", ""]
    (replaced,) = client.put_files(jid, {"in/out/deep/one": tmp_path / "new"}, replace=True)
    assert replaced.code == "" and (run_dir / "in/out/deep/one").read_text() == "new"
    (large,) = client.put_files(jid, {"large": _sparse(tmp_path / "large", 50_000_001)})
    assert large.code == "tooLarge" and not (run_dir / "large").exists()

    # a wrong digest is refused, and nothing appears
    wrong = hashlib.sha256(b"other").hexdigest()
    query = f"uid={UID}&computeJid={jid}&name=wrong&size=3&sha256={wrong}"
    answer = site.ask("PUT", f"/api/put-run-file?{query}", b"new")
    assert (answer.code, answer.json()["code"]) == (409, "conflict")
    assert not [p for p in run_dir.iterdir() if "wrong" in p.name]

    # another user's job is like a missing one
    said = []
    for uid, job in ((OTHER_UID, jid), (OTHER_UID, jid.replace(jid.split("-")[1], "zzzzzzzz"))):
        about = f"uid={uid}&computeJid={job}&name=n&size=3&sha256={wrong}"
        answers = [site.ask("PUT", f"/api/put-run-file?{about}", b"new")]
        for route, more in (
            ("run-file-digest", {}),
            ("run-file-part", {"sha256": wrong, "size": 3}),
        ):
            body = {"uid": uid, "computeJid": job, "name": "out/big", **more}
            answers.append(site.ask("POST", f"/api/{route}", json.dumps(body).encode()))
        said.append([(a.code, a.body.decode().replace(job, "JOB")) for a in answers])
    assert said[0] == said[1] and all(code >= 400 for code, _ in said[0]), said


def test_a_running_run_is_left_alone_and_other_users_have_no_access(
    site: SupervisorProcess, tmp_path: Path
) -> None:
    run = shell("while [ ! -e stop ]; do date >> log; sleep 0.02; done")
    site.submit(run)
    jid = jid_of(run)
    with (
        Client(site.url, site.token, UID) as client,
        Client(site.url, site.token, OTHER_UID) as other,
    ):
        until(lambda: client.status(jid).state == "running", "the run starts")
        until(lambda: any(f["size"] for f in client.files(jid)), "it writes")
        (tmp_path / "stop").write_text("")
        (refused,) = client.put_files(jid, {"stop": tmp_path / "stop"})
        assert refused.code == "conflict" and "active" in refused.error
        (copied,) = client.get_files(jid, ["log"], tmp_path)
        assert copied.code == "" and copied.size == (tmp_path / "log").stat().st_size > 0
        (forced,) = client.put_files(jid, {"stop": tmp_path / "stop"}, active=True)
        assert forced.code == ""
        assert client.wait(jid, timeout=60).state == "completed"
        whole = (Path(client.status(jid).run_dir or "") / "log").read_bytes()
        assert whole.startswith((tmp_path / "log").read_bytes())
        (missing,) = other.get_files(jid, ["log"], tmp_path / "x")
        assert missing.code == "notFound" and "there is no job" in missing.error
        assert list((tmp_path / "x").iterdir()) == []


def _sparse(path: Path, size: int) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path
