"""Formats of recorded stacks."""

import json

from jobscribe.cli.profile import folded
from jobscribe.cli.profile.folded import Recording


def test_the_formats_have_the_same_samples() -> None:
    recording = Recording()
    recording.add("main (a.py:1);f (a.py:2) 30\nmain (a.py:1);g <x>& (a.py:3) 10\n")
    recording.add("main (a.py:1);f (a.py:2) 20\nnonsense\nx -1\n 5\n")
    assert recording.samples == 60
    assert (
        folded.raw(recording) == "main (a.py:1);f (a.py:2) 50\nmain (a.py:1);g <x>& (a.py:3) 10\n"
    )

    scope = json.loads(folded.speedscope(recording, "job", 100))
    (profile,) = scope["profiles"]
    names = [f["name"] for f in scope["shared"]["frames"]]
    stacks = [[names[i] for i in sample] for sample in profile["samples"]]
    assert stacks == [["main (a.py:1)", "f (a.py:2)"], ["main (a.py:1)", "g <x>& (a.py:3)"]]
    assert profile["weights"] == [0.5, 0.1] and profile["endValue"] == 0.6


def test_an_empty_recording_has_every_format() -> None:
    nothing = Recording()
    assert folded.raw(nothing) == ""
    assert json.loads(folded.speedscope(nothing, "job", 100))["profiles"][0]["samples"] == []
