import pytest

from jobscribe.protocol.clusters.host_list import expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n1,login.site-2", ["n1", "login.site-2"]),
        ("n[1-3,07,9-10]", ["n1", "n2", "n3", "n07", "n9", "n10"]),
        ("r[08-11]c,x", ["r08c", "r09c", "r10c", "r11c", "x"]),
    ],
)
def test_a_list_is_expanded_as_scontrol_does(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "n[1-",
        "n[]",
        "n[3-1]",
        "a b",
        ",",
        "n[1-999999999]",
        "n[a]",
        "r[1-2]c[1-2]",
        "(null)",
        "n[1-9999],m[1-9999]",
        "-w;id[1",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="nodes"):
        expand(text)
