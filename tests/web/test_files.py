"""Downloads and uploads: ranges, conditions, names, and streaming with constant memory in both
directions.
"""

import contextlib
import hashlib
import io
import itertools
import time
import tracemalloc
from typing import Any

import pytest
from front_end_fixture import ANN, FrontEnd, refused
from stub_supervisor import StubSupervisor

from jobscribe.client.api.errors import ClientError
from jobscribe.protocol.errors import Refusal

from .test_runs import status

CONTENT = bytes(range(256)) * 4
ETAG, MODIFIED = '"3ff-17"', "Sat, 21 Nov 2026 07:47:56 GMT"
PATH = "/download-run-file/odd/abcdefgh/oddReport/-1?suffix=big10"


@pytest.fixture
def served(stub: StubSupervisor) -> StubSupervisor:
    def file(body: dict[str, Any]) -> Any:
        length = len(CONTENT) - body["offset"] if body["length"] is None else body["length"]
        part = CONTENT[body["offset"] :][:length]
        return (
            200,
            {"X-Jobscribe-Size": str(len(CONTENT)), "ETag": ETAG, "Last-Modified": MODIFIED},
            part,
        )

    stub.answers |= {
        "/api/run-status": status("completed"),
        "/api/call": {"name": "some/where/data.csv"},
        "/api/run-file": file,
    }
    return stub


def test_a_file_is_something_to_save_and_never_a_page_of_this_site(
    web: FrontEnd, served: StubSupervisor
) -> None:
    answer = web.as_(ANN).get(PATH)
    headers = answer.headers
    assert (answer.status_code, answer.get_data()) == (200, CONTENT)
    assert headers["Content-Disposition"] == "attachment; filename=data.csv"
    assert headers["Content-Type"].startswith("text/csv")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"].startswith("sandbox")
    assert (headers["ETag"], headers["Last-Modified"], headers["Accept-Ranges"]) == (
        ETAG,
        MODIFIED,
        "bytes",
    )
    assert (headers["Content-Length"], headers["Cache-Control"]) == (
        str(len(CONTENT)),
        "private, no-cache",
    )
    call, wanted = served.sent("/api/call")[0], served.sent("/api/run-file")[0]
    assert (call["jobCmd"], call["args"]) == ("download_run_file", {"suffix": "big10", "frame": -1})
    assert (wanted["name"], wanted["computeJobSerial"], call["computeJobSerial"]) == (
        "some/where/data.csv",
        1_700_000_000,
        1_700_000_000,
    )


@pytest.mark.parametrize(
    ("range_", "first", "last"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=10-19", 10, 19),
        ("bytes=1000-", 1000, 1023),
        ("bytes=-5", 1019, 1023),
        ("bytes=0-99999", 0, 1023),
        ("bytes=-99999", 0, 1023),
    ],
)
def test_a_part_is_sent_as_a_part(
    web: FrontEnd, served: StubSupervisor, range_: str, first: int, last: int
) -> None:
    answer = web.as_(ANN).get(PATH, Range=range_)
    assert (answer.status_code, answer.get_data()) == (206, CONTENT[first : last + 1])
    assert answer.headers["Content-Range"] == f"bytes {first}-{last}/1024"
    assert answer.headers["Content-Length"] == str(last - first + 1)
    assert sum(r["length"] or 0 for r in served.sent("/api/run-file")) == last - first + 1, (
        "no more is read than was asked for"
    )


@pytest.mark.parametrize(
    "range_", ["bytes=0-1,5-6", "bytes=a-b", "lines=0-1", "bytes", "bytes=5-2"]
)
def test_what_is_no_range_of_ours_gets_the_whole(
    web: FrontEnd, served: StubSupervisor, range_: str
) -> None:
    answer = web.as_(ANN).get(PATH, Range=range_)
    assert (answer.status_code, answer.get_data()) == (200, CONTENT)


def test_a_part_that_the_file_does_not_have(web: FrontEnd, served: StubSupervisor) -> None:
    answer = web.as_(ANN).get(PATH, Range="bytes=1024-")
    assert "1024 bytes" in refused(answer, 416, "rangeNotSatisfiable")["error"]
    assert answer.headers["Content-Range"] == "bytes */1024"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"If-None-Match": ETAG}, 304),
        ({"If-None-Match": f'W/{ETAG}, "x"'}, 304),
        ({"If-None-Match": "*"}, 304),
        ({"If-None-Match": '"x"'}, 200),
        ({"If-Modified-Since": MODIFIED}, 304),
        ({"If-Modified-Since": "Sat, 21 Nov 2026 07:47:55 GMT"}, 200),
        ({"If-Range": ETAG, "Range": "bytes=0-9"}, 206),
        ({"If-Range": '"x"', "Range": "bytes=0-9"}, 200),
        ({"If-Range": "W/" + ETAG, "Range": "bytes=0-9"}, 200),
        ({"If-Range": MODIFIED, "Range": "bytes=0-9"}, 206),
        ({"If-Range": "Sat, 21 Nov 2020 07:47:55 GMT", "Range": "bytes=0-9"}, 200),
        ({"If-None-Match": ETAG, "Range": "bytes=0-9"}, 304),
    ],
    ids=str,
)
def test_conditions(
    web: FrontEnd, served: StubSupervisor, headers: dict[str, str], code: int
) -> None:
    answer = web.as_(ANN).get(PATH, **headers)
    assert (answer.status_code, answer.get_data()) == (
        code,
        {200: CONTENT, 206: CONTENT[:10], 304: b""}[code],
    )
    assert answer.headers["ETag"] == ETAG


def test_a_head_says_how_large_it_is_and_reads_nothing(
    web: FrontEnd, served: StubSupervisor
) -> None:
    answer = web.as_(ANN).ask("HEAD", PATH)
    assert (answer.status_code, answer.get_data(), answer.headers["Content-Length"]) == (
        200,
        b"",
        "1024",
    )
    assert [r["length"] for r in served.sent("/api/run-file")] == [0]


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ('a"b\r\nX-Evil: 1.txt', 'attachment; filename="a\\"b__X-Evil: 1.txt"'),
        ("a/../..", "attachment; filename=.."),
        ("pagé.html", "attachment; filename*=UTF-8''pag%C3%A9.html"),
        ("\\windows", "attachment; filename=_windows"),
        ("x/", "attachment; filename=file"),
        ("a\u202egpj.exe", "attachment; filename=a_gpj.exe"),
        ("a\x85b\u2028c", "attachment; filename=a_b_c"),
    ],
)
def test_a_name_does_no_harm_in_a_header(
    web: FrontEnd, served: StubSupervisor, name: str, header: str
) -> None:
    served.answers["/api/call"] = {"name": name}
    answer = web.as_(ANN).get(PATH)
    assert answer.status_code == 200
    assert answer.headers["Content-Disposition"] == header
    assert "X-Evil" not in answer.headers


@pytest.mark.parametrize(
    "path",
    [
        "/download-run-file/odd/abcdefgh/oddReport/x",
        "/download-run-file/odd/abcdefgh/oddReport/1.5",
        "/download-run-file/ODD/abcdefgh/oddReport/-1",
        "/download-run-file/odd/abc/oddReport/-1",
        "/download-run-file/odd/abcdefgh/oddReport/-1?suffix=" + "x" * 300,
        "/download-run-file/odd/abcdefgh/oddReport/-1?computeJobSerial=-1",
        "/run-log/odd/abcdefgh/oddReport?stream=input",
        "/run-log/odd/abcdefgh/oddReport?tail=99999999",
        "/run-log/odd/abcdefgh/oddReport?tail=x",
        "/run-files/odd/abc/oddReport",
    ],
)
def test_an_address_that_is_none(web: FrontEnd, stub: StubSupervisor, path: str) -> None:
    refused(web.as_(ANN).get(path), 400, "badRequest")
    assert stub.requests == []


def test_a_download_that_is_cut_off_does_not_look_whole(
    web: FrontEnd, served: StubSupervisor
) -> None:
    served.answers["/api/run-file"] = (
        200,
        {
            "X-Jobscribe-Size": "1024",
            "ETag": ETAG,
            "Last-Modified": MODIFIED,
            "Content-Length": "1024",
        },
        CONTENT[:100],
    )
    answer = web.as_(ANN).ask("GET", PATH, buffered=False)
    with contextlib.closing(answer), pytest.raises(ClientError, match="924 bytes too early"):
        answer.get_data()


def test_slow_readers_hold_only_so_many_workers(served: StubSupervisor, make_web: Any) -> None:
    web = make_web(served.address, streams=2)
    browser = web.as_(ANN)
    held = [browser.ask("GET", PATH, buffered=False) for _ in range(2)]
    refused(browser.get(PATH), 429, "tooManyRequests")
    assert (
        browser.said(
            "/run-status",
            {"simulationType": "odd", "simulationId": "abcdefgh", "report": "oddReport"},
        )["state"]
        == "completed"
    )
    for answer in held:
        answer.close()
    assert [browser.get(PATH).status_code for _ in range(5)] == [200] * 5, (
        "a place that was given back can be had again"
    )
    served.answers["/api/run-file"] = Refusal("notFound", "gone")
    for _ in range(5):
        refused(browser.get(PATH), 404, "notFound")


LOG = [b"first ", b"second ", b"third"]


@pytest.fixture
def logged(stub: StubSupervisor) -> StubSupervisor:
    whole = b"".join(LOG)

    def piece(body: dict[str, Any]) -> Any:
        start = len(whole) - body["tail"] if body["tail"] else body["offset"]
        data = (
            whole[start:]
            if body["tail"]
            else next((p for i, p in enumerate(LOG) if len(b"".join(LOG[:i])) == start), b"")
        )
        after = start + len(data)
        return (
            200,
            {
                "X-Jobscribe-Offset": str(start),
                "X-Jobscribe-Next-Offset": str(after),
                "X-Jobscribe-Dropped": "9" if start == 6 else "0",
                "X-Jobscribe-End": "true" if after >= len(whole) else "false",
                "Content-Type": "application/octet-stream",
            },
            data,
        )

    stub.answers |= {"/api/run-status": status("running"), "/api/job-log": piece}
    return stub


def test_a_log_is_text_the_newest_of_it_or_all(web: FrontEnd, logged: StubSupervisor) -> None:
    newest = web.as_(ANN).get("/run-log/odd/abcdefgh/oddReport?tail=5&stream=stderr")
    assert (newest.get_data(), newest.headers["X-Jobscribe-Offset"]) == (b"third", "13")
    assert newest.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert (
        newest.headers["Content-Security-Policy"].startswith("sandbox")
        and newest.headers["X-Content-Type-Options"] == "nosniff"
    )
    assert logged.sent("/api/job-log")[0]["stream"] == "stderr"
    whole = web.as_(ANN).get("/run-log/odd/abcdefgh/oddReport")
    assert whole.get_data() == b"first \n[9 bytes are not kept]\nsecond third"
    assert {r["computeJobSerial"] for r in logged.sent("/api/job-log")} == {1_700_000_000}


@contextlib.contextmanager
def held_memory(most: int) -> Any:
    """Fail if this process allocates `most` bytes more than at the beginning."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield
        assert tracemalloc.get_traced_memory()[1] - before < most
    finally:
        tracemalloc.stop()


def test_a_large_download_is_not_held(web: FrontEnd, served: StubSupervisor) -> None:
    block, blocks = bytes(1 << 20), 64
    headers = {
        "X-Jobscribe-Size": str(blocks << 20),
        "Content-Length": str(blocks << 20),
        "ETag": ETAG,
        "Last-Modified": MODIFIED,
    }
    served.answers["/api/run-file"] = lambda body: (200, headers, itertools.repeat(block, blocks))
    with held_memory(8 << 20):
        answer = web.as_(ANN).ask("GET", PATH, buffered=False)
        assert sum(len(piece) for piece in answer.iter_encoded()) == blocks << 20
        answer.close()


class Counting(io.RawIOBase):
    """A stream of the given size that generates its bytes."""

    def __init__(self, size: int) -> None:
        self.left = self.size = size
        self.place = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = 0) -> int:
        """Report an end that is not the real end."""
        self.place = 2 * self.size if whence == 2 else offset
        return self.place

    def readinto(self, buffer: Any) -> int:
        n = min(len(buffer), self.left)
        self.left -= n
        buffer[:n] = b"z" * n
        return n


def test_an_upload_goes_through_with_its_length(web: FrontEnd, stub: StubSupervisor) -> None:
    stub.answers["/api/lib-file"] = {"name": "a b.txt", "size": 5, "sha256": "x"}
    said = web.as_(ANN).put("/lib-file/odd/a%20b.txt", b"hello")
    assert (said.status_code, said.get_json()["size"]) == (200, 5)
    assert stub.bodies[-1] == b"hello"
    for sent, over in (
        ({"If-Match": '"5-1"'}, "over=%225-1%22"),
        ({"If-None-Match": "*"}, "over=none"),
        ({}, None),
    ):
        web.as_(ANN).put("/lib-file/odd/a%20b.txt", b"hello", **sent)
        query = stub.queries[-1]
        assert (over in query) if over else ("over" not in query), query
    for wrong in ({"If-Match": '"a", "b"'}, {"If-Match": "*"}, {"If-None-Match": '"a"'}):
        answer = web.as_(ANN).put("/lib-file/odd/a%20b.txt", b"hello", **wrong)
        refused(answer, 400, "badRequest")
    stub.answers["/api/lib-files"] = {
        "files": [{"name": "a b.txt", "size": 5, "sha256": "x", "mtime": 1.5}]
    }
    assert web.as_(ANN).get("/lib-files/odd").get_json()["files"][0]["name"] == "a b.txt"
    stub.answers["/api/lib-file"] = {"state": "ok"}
    assert web.as_(ANN).delete("/lib-file/odd/a%20b.txt").status_code == 200


def test_an_upload_that_is_cut_off_is_not_taken_for_whole(
    web: FrontEnd, stub: StubSupervisor
) -> None:
    whole = hashlib.sha256(b"z" * 200_000).hexdigest()
    stub.answers["/api/lib-file"] = lambda body: {"sha256": whole}
    answer = web.as_(ANN).ask(
        "PUT",
        "/lib-file/odd/a.txt",
        input_stream=Counting(100_000),
        headers={"X-Jobscribe": "1"},
    )
    assert answer.status_code == 400, answer.get_data()
    deadline = time.monotonic() + 5
    while stub.bodies and len(stub.bodies[-1]) >= 200_000 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert all(len(b) < 200_000 for b in stub.bodies)


@pytest.mark.parametrize("name", ["..", ".", "%00", "a%0ab", "x" * 300])
def test_a_name_that_cannot_be_a_file(web: FrontEnd, stub: StubSupervisor, name: str) -> None:
    for answer in (
        web.as_(ANN).put(f"/lib-file/odd/{name}", b"x"),
        web.as_(ANN).delete(f"/lib-file/odd/{name}"),
    ):
        assert answer.status_code in (400, 404)
    assert stub.requests == []


def test_a_name_with_a_slash_is_no_address(web: FrontEnd, stub: StubSupervisor) -> None:
    for name in ("a/b", "a%2fb", "..%2f..%2fetc%2fpasswd"):
        assert web.as_(ANN).put(f"/lib-file/odd/{name}", b"x").status_code == 404
    assert stub.requests == []
