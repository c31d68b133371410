"""The parts of `bundle`: masking of secrets, reading of hostile folders, and the archive format."""

import gzip
import json
import os
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

from jobscribe.cli.bundle import archive, local_files
from jobscribe.cli.bundle.parts import Collected, Part, plain
from jobscribe.cli.bundle.secret_masking import Masker
from jobscribe.protocol.launch.job_script import _quoted

KNOWN = "kZ8nB8xKp2Lw9Rt5Yc7Zm4Hd6Jf1Gs0A"


def masked(*parts: Part, known: tuple[str, ...] = (KNOWN,)) -> list[str]:
    masker = Masker(known)
    for part in parts:
        masker.learn(part)
    return [masker.masked(part).data.decode("utf-8", "surrogateescape") for part in parts]


@pytest.mark.parametrize(
    "value", ["plain-secret-1", "it's a 's3cret'", "two\nlines of secret", "'''quoted'''"]
)
def test_a_secret_variable_of_a_script_is_masked_there_and_found_everywhere_else(
    value: str,
) -> None:
    script = Part(
        "script.sh",
        "script",
        f"export HOME='/h'\nexport MY_API_KEY={_quoted(value)}\nexport Z='end'\ncd '/x'\n".encode(),
        "",
    )
    output = Part("stdout.log", "output", f"I was given {value} today".encode(), "")
    said, wrote = masked(script, output)
    assert (
        "export MY_API_KEY='<REDACTED>'" in said
        and "export HOME='/h'" in said
        and "export Z='end'" in said
        and "cd '/x'" in said
    )
    assert value not in said and value not in wrote and "I was given" in wrote


def test_words_of_a_command_are_masked_by_their_options() -> None:
    (said,) = masked(
        Part(
            "script.sh",
            "script",
            b"( exec '/bin/x' '--password' 'hunter2222' '--name' 'joe' 'DB_PASSWORD=letmein99' )\n",
            "",
        )
    )
    assert "hunter2222" not in said and "letmein99" not in said and "'--name' 'joe'" in said


def test_json_is_masked_by_names_at_any_depth_and_by_value_and_stays_json() -> None:
    value = {
        "a": [{"env": {"API_KEY": "deep-value-77", "PATH": "/bin"}}],
        "argv": ["x", "--token", "tok-value-88", "T_SECRET=sec-value-99"],
        "n": 3,
        "k": f"x{KNOWN}y",
    }
    (said,) = masked(Part("a.json", "json", json.dumps(value).encode(), ""))
    back = json.loads(said)
    assert back["a"][0]["env"] == {"API_KEY": "<REDACTED>", "PATH": "/bin"} and back["n"] == 3
    assert not [s for s in ("deep-value", "tok-value", "sec-value", KNOWN) if s in said]
    # a job's fencing token is not a secret
    token = "k4A8ecC8-H7YcnWbB-command/1795304494/1/main/0"
    assert json.loads(
        masked(Part("b.json", "json", json.dumps({"token": token}).encode(), ""))[0]
    ) == {"token": token}


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        (f"x {KNOWN} y", KNOWN),
        ("password=hunter2222 next", "hunter2222"),
        ('"api_key": "abc123def"', "abc123def"),
        ("Authorization: Bearer abc.def.ghi", "abc.def"),
        ("postgres://joe:letmein@db/x", "letmein"),
        (f"{KNOWN}{KNOWN}", KNOWN),
    ],
)
def test_text_is_masked(text: str, gone: str) -> None:
    (said,) = masked(Part("a.log", "text", text.encode(), ""))
    assert gone not in said and "<REDACTED>" in said


def test_what_is_no_secret_stays() -> None:
    text = "tokens: 512, tokens=1.5 loss=0.3 step 7 path=/a/b token=k4A8ecC8-H7YcnWbB-command/1795304494/1/main/0"
    assert masked(Part("a.log", "output", text.encode(), "")) == [text]


def test_bytes_that_are_no_text_come_through_and_broken_json_is_masked_as_text() -> None:
    data = bytes(range(256)) + KNOWN.encode() + b"\xff\xfe\x00"
    masker = Masker([KNOWN])
    assert masker.masked(Part("o", "output", data, "")).data == data.replace(
        KNOWN.encode(), b"<REDACTED>"
    )
    (said,) = masked(Part("e.json", "json", b'{"password": "hunter2222", "half', ""))
    assert "hunter2222" not in said and "half" in said
    (deep,) = masked(Part("d.json", "json", b"[" * 5000 + b"]" * 5000, ""))
    assert deep


# ---- files that a job created


def task(root: Path, evidence: Path) -> dict[str, Any]:
    return {"role": "main", "index": 0, "attempt": 1, "host": "h", "evidence": str(evidence)}


def read(root: Path, evidence: Path) -> Collected:
    out = Collected(lambda what: None)
    local_files.collect(str(root), [task(root, evidence)], out)
    return out


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    made = tmp_path / "root" / "agent" / "local.sequential.u@h" / "run" / "x"
    made.mkdir(parents=True)
    (made / "script.sh").write_text("#!/bin/sh\n")
    return made


def test_plain_files_are_taken_and_no_others(tmp_path: Path, evidence: Path) -> None:
    root = tmp_path / "root"
    (tmp_path / "elsewhere").write_text("not yours")
    (evidence / "exit.json").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(evidence / "signal")
    (evidence / "job.json").mkdir()
    (evidence / "report.jsonl").write_bytes(b"x" * (local_files.FILE_BYTES + 10))
    (evidence / "..weird\n.log").write_text("not asked for")
    done: list[Collected] = []
    thread = threading.Thread(target=lambda: done.append(read(root, evidence)), daemon=True)
    thread.start()
    thread.join(20)
    assert done, "it waits for a pipe"
    parts = {p.name: p for p in done[0].parts}
    assert set(parts) == {"attempts/1/main-0/script.sh", "attempts/1/main-0/report.jsonl"}
    assert (
        len(parts["attempts/1/main-0/report.jsonl"].data) == local_files.FILE_BYTES
        and "10 earlier bytes" in parts["attempts/1/main-0/report.jsonl"].about
    )
    missing = {m.name.rpartition("/")[2]: m.why for m in done[0].missing}
    assert (
        set(missing) == {"exit.json", "signal", "job.json"}
        and "not a plain file" in missing["signal"]
    )


def test_a_folder_that_became_a_link_is_not_followed(tmp_path: Path, evidence: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "script.sh").write_text("not yours")
    (evidence / "script.sh").unlink()
    evidence.rmdir()
    evidence.symlink_to(tmp_path / "elsewhere")
    out = read(tmp_path / "root", evidence)
    assert out.parts == [] and {m.name for m in out.missing} >= {"attempts/1/main-0/script.sh"}


@pytest.mark.parametrize("place", ["/etc", "", "relative", "../..", "/root/../etc"])
def test_what_does_not_lie_in_the_root_is_not_read_and_that_is_said(
    tmp_path: Path, place: str
) -> None:
    out = Collected(lambda what: None)
    local_files.collect(
        str(tmp_path),
        [{"role": "r", "index": 0, "attempt": 1, "evidence": place, "host": None}],
        out,
    )
    assert out.parts == [] and "not in this root" in out.missing[0].why
    up = Collected(lambda what: None)
    local_files.collect(
        str(tmp_path),
        [
            {
                "role": "r",
                "index": 0,
                "attempt": 1,
                "evidence": f"{tmp_path}/a/../../x",
                "host": None,
            }
        ],
        up,
    )
    assert up.parts == [] and "not in this root" in up.missing[0].why


def test_secrets_of_a_root_are_known_also_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "secret" / "deeper").mkdir(parents=True)
    (tmp_path / "secret" / "server").write_text(KNOWN + "\n")
    (tmp_path / "secret" / "deeper" / "key").write_text(
        "-----BEGIN KEY-----\nMIIBVwIBADANBgkqhkiG9w0\n-----END KEY-----\n"
    )
    os.mkfifo(tmp_path / "secret" / "pipe")
    found = list(local_files.secrets(str(tmp_path), [str(tmp_path / "nowhere")]))
    assert (
        KNOWN in found
        and "MIIBVwIBADANBgkqhkiG9w0" in found
        and not [f for f in found if f == "-----END KEY-----"]
    )


# ---- the archive


def test_what_would_be_too_large_is_left_out_and_named() -> None:
    out = Collected(lambda what: None)
    for name, size in (("a", 10), ("b", 100), ("c", 5)):
        out.add(name, "text", b"x" * size, "")
    out.limit_size(20)
    assert (
        [p.name for p in out.parts] == ["a", "c"]
        and out.missing[0].name == "b"
        and "--max-size" in out.missing[0].why
    )


def test_an_archive_is_ones_own_whole_and_never_over_another_file(tmp_path: Path) -> None:
    out = Collected(lambda what: None)
    out.add("status.json", "json", b"{}\n", "how")
    out.lacks("x", "gone")
    made = archive.manifest("u-s-m", "1.0", out, 5.0)
    path = tmp_path / "b.tar.gz"
    old = os.umask(0)
    try:
        size = archive.write(str(path), "u-s-m", out, made)
    finally:
        os.umask(old)
    assert size == path.stat().st_size and path.stat().st_mode & 0o777 == 0o600
    with gzip.open(path) as f, tarfile.open(fileobj=f) as tar:
        assert [(m.name, m.isreg(), m.mode) for m in tar.getmembers()] == [
            ("u-s-m/manifest.json", True, 0o600),
            ("u-s-m/status.json", True, 0o600),
        ]
        said = json.load(tar.extractfile("u-s-m/manifest.json"))  # type: ignore[arg-type]
    assert said["missing"] == [{"name": "x", "why": "gone"}]
    assert (
        said["items"][0]["sha256"]
        == "ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356"
    )
    with pytest.raises(FileExistsError):
        archive.write(str(path), "u-s-m", out, made)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError):
        archive.write(str(tmp_path / "link"), "u-s-m", out, made)
    assert not (tmp_path / "target").exists()


def test_names_of_parts_are_ours() -> None:
    assert (
        plain("../../etc/passwd") == "______etc_passwd"
        and plain("") == "_"
        and "/" not in plain("a/b\n")
    )
