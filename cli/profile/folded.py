"""Recorded stacks, and their formats: folded text and speedscope. Pure."""

import json
from collections import Counter

#: Stacks of a recording that are kept, and frames of a stack.
MOST_STACKS, MOST_FRAMES = 200_000, 500


class Recording:
    """Stacks, outermost frame first, with the number of samples of each."""

    def __init__(self) -> None:
        self.stacks: Counter[tuple[str, ...]] = Counter()

    def add(self, text: str) -> None:
        """Add lines `frame;frame;frame count`. Others are ignored."""
        for line in text.splitlines():
            frames, _, count = line.rpartition(" ")
            stack = tuple(frames.split(";")[:MOST_FRAMES])
            counted = frames and count.isascii() and count.isdigit() and len(count) < 12
            if counted and (stack in self.stacks or len(self.stacks) < MOST_STACKS):
                self.stacks[stack] += int(count)

    @property
    def samples(self) -> int:
        return sum(self.stacks.values())


def raw(recording: Recording) -> str:
    """Return folded stacks, as flamegraph.pl and inferno read them."""
    return "".join(f"{';'.join(s)} {n}\n" for s, n in sorted(recording.stacks.items()))


def speedscope(recording: Recording, name: str, rate: int) -> str:
    """Return a file for https://www.speedscope.app. Weights are seconds."""
    frames: dict[str, int] = {}
    stacks = sorted(recording.stacks.items())
    samples = [[frames.setdefault(f, len(frames)) for f in stack] for stack, _ in stacks]
    weights = [n / rate for _, n in stacks]
    profile = {
        "type": "sampled",
        "name": name,
        "unit": "seconds",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
    return json.dumps(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "shared": {"frames": [{"name": f} for f in frames]},
            "profiles": [profile],
            "name": name,
            "exporter": "jobscribe",
        }
    )
