"""Recorded stacks, and their formats: folded text and speedscope. Pure."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator

#: Stacks of a recording that are kept, and frames of a stack.
MOST_STACKS, MOST_FRAMES = 200_000, 500
_DIGITS = 18


def parsed(lines: Iterable[str], most_frames: int) -> Iterator[tuple[list[str], int]]:
    """Yield frames, outermost first, and number of each line `frame;frame;frame count`. Lines of
    another form are left out.
    """
    for line in lines:
        frames, _, count = line.rstrip().rpartition(" ")
        if frames and count.isascii() and count.isdigit() and len(count) <= _DIGITS:
            yield frames.split(";")[:most_frames], int(count)


class Recording:
    """Stacks, outermost frame first, with the number of samples of each."""

    def __init__(self) -> None:
        self.stacks: Counter[tuple[str, ...]] = Counter()

    def add(self, text: str, node: str | None = None) -> None:
        """Add lines `frame;frame;frame count`. Others are ignored. node: becomes the outermost frame."""
        first = () if node is None else (f"node {node}",)
        for frames, count in parsed(text.splitlines(), MOST_FRAMES):
            stack = (*first, *frames)
            if stack in self.stacks or len(self.stacks) < MOST_STACKS:
                self.stacks[stack] += count

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
