"""Recorded stacks, and their formats: folded text, speedscope, and a flame graph. Pure."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from html import escape
from typing import NamedTuple

#: Stacks of a recording that are kept, and frames of a stack.
MOST_STACKS, MOST_FRAMES = 200_000, 500
_WIDTH, _HEIGHT, _CHAR_WIDTH, _LEAST_WIDTH = 1200.0, 17, 6.6, 0.3
_COLOURS = ("#e6794b", "#e8935a", "#eba868", "#d9683f", "#e0b06a", "#dd8452")


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


class _Box(NamedTuple):
    depth: int
    left: int
    samples: int
    name: str


def flame_graph(recording: Recording, title: str) -> str:
    """Return an SVG image without scripts. The title of a box has its frame and share."""
    total = recording.samples
    boxes = [b for b in _boxes(recording) if b.samples * _WIDTH / max(total, 1) >= _LEAST_WIDTH]
    height = (max((b.depth for b in boxes), default=0) + 3) * _HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {height}"'
        ' font-family="monospace" font-size="11">',
        f'<text x="4" y="{_HEIGHT - 4}">{_shown(title)}</text>',
        *(line for box in boxes for line in _drawn(box, total)),
        "</svg>\n",
    ]
    return "\n".join(lines)


def _boxes(recording: Recording) -> Iterator[_Box]:
    """Yield the boxes of frames; neighbours with the same outer frames are one box."""
    open_: list[tuple[str, int]] = []
    at = 0
    for stack, count in [*sorted(recording.stacks.items()), ((), 0)]:
        same = 0
        while same < min(len(open_), len(stack)) and open_[same][0] == stack[same]:
            same += 1
        for depth in range(len(open_) - 1, same - 1, -1):
            name, left = open_[depth]
            yield _Box(depth, left, at - left, name)
        open_[same:] = [(name, at) for name in stack[same:]]
        at += count


def _drawn(box: _Box, total: int) -> Iterable[str]:
    scale = _WIDTH / total
    x, width, y = box.left * scale, box.samples * scale, (box.depth + 1) * _HEIGHT + 4
    colour = _COLOURS[sum(box.name.encode()) % len(_COLOURS)]
    share = f"{box.name}: {box.samples} samples, {100 * box.samples / total:.1f} %"
    yield f"<g><title>{_shown(share)}</title>"
    yield f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_HEIGHT - 1}" fill="{colour}"/>'
    fits = int(width / _CHAR_WIDTH) - 1
    if fits > 2:
        text = box.name if len(box.name) <= fits else box.name[: fits - 1] + "…"
        yield f'<text x="{x + 3:.1f}" y="{y + _HEIGHT - 5}">{_shown(text)}</text>'
    yield "</g>"


def _shown(text: str) -> str:
    """Return text of an XML document, which has no control characters."""
    return escape("".join(c if c.isprintable() else "?" for c in text))
