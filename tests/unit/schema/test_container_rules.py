"""Names of images and volumes: invalid or forbidden names are refused with a reason, valid names
are accepted.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobscribe.protocol.ids import Arg
from jobscribe.protocol.jobs.roles import Image
from jobscribe.schema.fields import fits
from jobscribe.schema.jobs.container_rules import (
    first_duplicate,
    image_problem,
    plain_path,
    volume_problem,
    volume_refusal,
)

DIGEST = "sha256:" + "0123456789abcdef" * 4
OWN = "/srv/users/user0001"


@pytest.mark.parametrize(
    "image",
    [
        "python",
        "python:3.11",
        "library/python:3.11-slim",
        "lab/python:3.11",
        "localhost/x",
        "localhost:5000/x:y",
        "registry.example.org/a/b/c",
        "registry.example.org:5000/team/solver:2",
        f"python@{DIGEST}",
        f"python:3.11@{DIGEST}",
        "EXAMPLE.org/x",
        "10.0.0.1:5000/x",
        "a__b/c-d.e_f",
        "x:" + "t" * 128,
        DIGEST,
        "a--b",
    ],
)
def test_what_an_image_may_be_called(image: str) -> None:
    assert image_problem(image) is None
    assert fits(image, Image)


@pytest.mark.parametrize(
    ("image", "word"),
    [
        ("", "empty"),
        ("Python:3.11", "capital letters"),
        ("library/Python", "capital letters"),
        ("python:3.11 ", "contains"),
        ("a b", "contains"),
        ("py\0thon", "contains"),
        ("pythön", "contains"),
        ("python:", "not a tag"),
        ("python:-x", "not a tag"),
        ("x:" + "t" * 129, "not a tag"),
        ("python@sha256:abc", "not a digest"),
        ("python@", "not a digest"),
        ("python@md5:" + "0" * 32, "not a digest"),
        ("a//b", "is empty"),
        ("a/", "is empty"),
        ("/a", "is empty"),
        ("_a", "not a valid part of a name"),
        ("a___b", "not a valid part of a name"),
        ("a..b", "not a valid part of a name"),
        ("a-", "not a valid part of a name"),
        ("-v", "not a valid part of a name"),
        ("--privileged", "not a valid part of a name"),
        ("https://registry/x", "not a registry"),
        ("reg_istry.org/x", "not a registry"),
        ("a" * 256, "255"),
        ("../../etc", "not a registry"),
        ("registry:5000:6000/x", "not a registry"),
        ("$(id)", "not a valid part of a name"),
    ],
)
def test_what_no_image_can_be_called(image: str, word: str) -> None:
    problem = image_problem(image)
    assert problem is not None and word in problem
    assert problem.isprintable() and problem.isascii()


@given(
    st.text(max_size=40)
    | st.text(alphabet="aB0._-:/@ ", max_size=40)
    | st.from_regex(r"[a-z0-9]{1,5}([._:/-][a-z0-9]{1,5}){0,4}", fullmatch=True)
)
def test_whatever_is_let_through_has_the_shape_that_is_stored(text: str) -> None:
    if image_problem(text) is None:
        assert fits(text, Image) and not text.startswith("-")
    if volume_problem(text) is None:
        assert fits(text, Arg) and ".." not in text.split("/") and ":" not in text


@pytest.mark.parametrize(
    "volume", ["datasets", "a.b-c_1", "/users/x", "/", "/a/.b/c d", "/a//b/", "a..b"]
)
def test_what_a_volume_may_be(volume: str) -> None:
    assert volume_problem(volume) is None


@pytest.mark.parametrize(
    ("volume", "word"),
    [
        ("", "empty"),
        (".", "relative"),
        ("..", "relative"),
        ("a/b", "relative"),
        ("../x", "relative"),
        ("./x", "relative"),
        ("/a/../b", "`..`"),
        ("/..", "`..`"),
        ("/a/..", "`..`"),
        ("/a\0b", "NUL"),
        ("a\0", "NUL"),
        ("/a:/b", "colon"),
        ("/a\nb", "unprintable"),
        ("-x", "not a volume name"),
        ("a b", "not a volume name"),
        ("ä", "not a volume name"),
        ("x" * 64, "not a volume name"),
        ("/" + "x" * 4095, "4095 bytes"),
        ("~", "not a volume name"),
        ("/a\ud800", "unprintable"),
    ],
)
def test_what_no_volume_can_be(volume: str, word: str) -> None:
    problem = volume_problem(volume)
    assert problem is not None and word in problem


def test_a_path_is_the_same_with_more_slashes() -> None:
    assert (
        plain_path("/a//b/./c/") == "/a/b/c"
        and plain_path("a.b") == "a.b"
        and plain_path("//") == "/"
    )
    assert first_duplicate(["a", "/a", "/b", "/b/c"]) is None
    assert first_duplicate(["/a/b", "x", "//a/./b/"]) == "//a/./b/"
    assert first_duplicate(["x", "y", "x"]) == "x"


@pytest.mark.parametrize(
    "path", [OWN, f"{OWN}/", f"{OWN}/data", "/srv//users/./user0001/data", f"{OWN}/..data"]
)
def test_the_own_directory_may_be_seen(path: str) -> None:
    assert volume_refusal(path, (), OWN) is None
    assert volume_refusal(path, (), OWN + "/") is None


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/etc",
        "/srv/users",
        "/srv/users/user0002",
        f"{OWN}2",
        f"{OWN}2/data",
        "/srv/users/user000",
    ],
)
def test_nothing_else_may_be(path: str) -> None:
    told = volume_refusal(path, ("b", "a"), OWN)
    assert told is not None and OWN in told and told.endswith("there are: a, b")
    # without a home directory, no path is the user's own
    assert volume_refusal(path, (), "") is not None and volume_refusal(path, (), "/") is not None


def test_names_are_those_of_the_pool() -> None:
    assert volume_refusal("data", {"data": 1}, OWN) is None
    assert (
        volume_refusal("date", ("data", "more"), OWN)
        == "there is no volume of this name; there are: data, more"
    )
    assert volume_refusal("data", (), OWN) == "there is no volume of this name; this site has none"
