"""Modes of remote debugging."""

import pytest

from jobscribe.protocol.errors import Refusal
from jobscribe.protocol.jobs import debugging


@pytest.mark.parametrize(
    ("mode", "valid"),
    [
        ("breakpoint", True),
        ("debugpy", True),
        ("debugpy:desk.example.org:5678", True),
        ("pydevd:192.0.2.7:65535", True),
        ("pydevd:192.0.2.7:65536", False),
        ("pydevd", False),
        ("pydevd::5678", False),
        ("pydevd:host:0", False),
        ("pydevd:-host:5678", False),
        ("debugpy:host name:5678", False),
        ("debugpy:host:5678\n", False),
        ("gdb:host:5678", False),
        ("", False),
    ],
)
def test_a_mode_is_a_word_or_the_address_of_a_debugger(mode: str, valid: bool) -> None:
    env = {debugging.VARIABLE: mode}
    assert (debugging.option(env) is not None) is valid
    if valid:
        debugging.check(env, allowed=True, most_secs=debugging.DEFAULT_SECS)
    else:
        with pytest.raises(Refusal, match="debugpy, debugpy:HOST:PORT, pydevd:HOST:PORT"):
            debugging.check(env, allowed=True, most_secs=debugging.DEFAULT_SECS)


def test_everybody_is_told_where_the_debugger_is() -> None:
    option = debugging.option({debugging.VARIABLE: "pydevd:desk:5678"})
    assert option is not None
    assert "pydevd connects to desk:5678" in debugging.warning(option)
