"""`job files`, `job get` and `job put`."""

from pathlib import Path
from typing import Any

import pytest

Fake = Any
Run = Any

FILES = {
    "out.csv": b"a,b\n",
    "in.json": b"{}",
    "frames/0.png": b"0" * 5,
    "frames/1.png": b"1" * 5,
    "frames/deep/x.png": b"x",
}


@pytest.fixture
def jid(run: Run, fake: Fake) -> str:
    fake.files = dict(FILES)
    return str(run("job", "submit", "-q", "--", "true").out.strip())


def names(ended: Any) -> list[str]:
    assert ended.code == 0
    return [item["name"] for item in ended.json()["items"]]


@pytest.mark.parametrize(
    ("globs", "found"),
    [
        ((), ["frames/0.png", "frames/1.png", "frames/deep/x.png", "in.json", "out.csv"]),
        (("*.csv",), ["out.csv"]),
        (("*",), sorted(FILES)),
        (("frames/*.png",), ["frames/0.png", "frames/1.png"]),
        (("**/*.png",), ["frames/0.png", "frames/1.png", "frames/deep/x.png"]),
        (("frames/",), ["frames/0.png", "frames/1.png", "frames/deep/x.png"]),
        (("./frames/[!0].png", "in.json"), ["frames/1.png", "in.json"]),
        (("?ut.csv",), ["out.csv"]),
        (("*.pdf",), []),
        (("frames?0.png",), []),
        (("frames[!a]0.png",), []),
    ],
)
def test_globs_choose(run: Run, jid: str, globs: tuple[str, ...], found: list[str]) -> None:
    assert names(run("job", "files", "--json", jid, *globs)) == found


def test_a_person_sees_sizes_and_times(run: Run, jid: str) -> None:
    ended = run("job", "files", jid, "out.csv")
    assert ended.out.split() == ["SIZE", "CHANGED", "NAME", "4", "2023-11-14T22:13:20Z", "out.csv"]
    ended = run("job", "files", jid, "*.pdf")
    assert (ended.code, ended.out) == (0, "") and "matches *.pdf" in ended.err
    assert run("job", "files", jid, "[z-a]").code == 2


def test_files_are_copied_with_their_folders(run: Run, jid: str, tmp_path: Path) -> None:
    to = tmp_path / "results"
    ended = run("job", "get", jid, "-o", str(to))
    assert ended.code == 0
    assert ended.out.splitlines() == [
        f"{to}/{name}" for name in sorted(FILES, key=lambda n: n.split("/"))
    ]
    assert {str(p.relative_to(to)): p.read_bytes() for p in to.rglob("*") if p.is_file()} == FILES


def test_a_file_that_is_there_is_kept_unless_it_is_forced(
    run: Run, jid: str, tmp_path: Path
) -> None:
    (tmp_path / "out.csv").write_text("mine")
    ended = run("job", "get", "--json", jid, "*.csv", "in.json", "-o", str(tmp_path))
    assert ended.code == 125
    assert [(f["name"], f["code"]) for f in ended.json()["failed"]] == [("out.csv", "conflict")]
    assert [i["path"] for i in ended.json()["items"]] == [f"{tmp_path}/in.json"]
    assert "--force replaces it" in ended.err and (tmp_path / "out.csv").read_text() == "mine"
    assert run("job", "get", jid, "out.csv", "-o", str(tmp_path), "--force").code == 0
    assert (tmp_path / "out.csv").read_bytes() == FILES["out.csv"]


def test_a_file_that_breaks_off_is_continued_or_leaves_nothing_behind(
    run: Run, fake: Fake, jid: str, tmp_path: Path
) -> None:
    fake.file_cut_after = 0
    ended = run("job", "get", jid, "out.csv", "-o", str(tmp_path / "to"))
    assert (ended.code, ended.out) == (125, "")
    assert "could not be read completely" in ended.err
    assert list((tmp_path / "to").iterdir()) == []
    fake.file_cut_after = 1
    assert run("job", "get", jid, "out.csv", "-o", str(tmp_path / "to")).code == 0
    assert [p.name for p in (tmp_path / "to").iterdir()] == ["out.csv"]
    assert (tmp_path / "to" / "out.csv").read_bytes() == FILES["out.csv"]


def test_a_copy_with_another_digest_is_refused(
    run: Run, fake: Fake, jid: str, tmp_path: Path
) -> None:
    fake.digest = "0" * 64
    ended = run("job", "get", "--json", jid, "out.csv", "-o", str(tmp_path))
    assert ended.code == 125 and not (tmp_path / "out.csv").exists()
    (failed,) = ended.json()["failed"]
    assert failed["code"] == "conflict" and "changed during the copy" in failed["error"]


def test_a_link_in_the_target_folder_is_not_followed(run: Run, jid: str, tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "to" / "frames").symlink_to(tmp_path / "outside")
    ended = run("job", "get", jid, "frames/0.png", "-o", str(tmp_path / "to"))
    assert ended.code == 125 and list((tmp_path / "outside").iterdir()) == []


def test_a_long_list_is_bounded_with_a_note(run: Run, jid: str) -> None:
    ended = run("job", "files", jid, "--limit", "2")
    assert len(ended.out.splitlines()) == 3 and "more than 2 files" in ended.err
    assert run("job", "files", "--json", jid, "--limit", "5").json()["more"] is False


def test_local_files_that_cannot_be_put_are_refused(run: Run, jid: str, tmp_path: Path) -> None:
    ended = run("job", "put", jid, str(tmp_path / "none"))
    assert ended.code == 125 and "there is no file" in ended.err
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x").write_text("")
    ended = run("job", "put", jid, str(tmp_path / "a" / "x"), str(tmp_path / "b" / "x"))
    assert ended.code == 125 and "would both become x" in ended.err


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil-of-jobscribe", "a/../../evil"])
def test_a_name_that_leads_out_of_the_folder_is_refused(
    run: Run, fake: Fake, jid: str, tmp_path: Path, name: str
) -> None:
    fake.files = {name: b"x"}
    ended = run("job", "get", jid, "-o", str(tmp_path / "deep" / "to"))
    assert ended.code == 125 and "not a plain relative path" in ended.err
    assert not list(tmp_path.rglob("evil")) and not Path("/tmp/evil-of-jobscribe").exists()


def test_no_file_to_copy_is_an_error(run: Run, jid: str) -> None:
    ended = run("job", "get", jid, "*.pdf")
    assert ended.code == 125 and "matches *.pdf" in ended.err
