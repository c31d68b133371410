"""Curves over time, in the format of memory_profiler's `mprof` (`MEM MIB TIME`) or of GPUs
(`GPU PERCENT MIB TIME`), as an HTML page without network. Pure.
"""

import math
from collections.abc import Iterable, Sequence

from .page_parts import page

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 1000.0, 300.0, 70.0, 25.0
#: Points of one curve; of more, the largest of several neighbours counts.
_MOST_POINTS = 2000

Points = Sequence[tuple[float, float]]


def curve_page(lines: Iterable[str], title: str) -> str:
    """Return the page of the curves in these lines. Lines of another form are left out."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        word, *rest = line.split()
        numbers = _numbers(rest)
        if word == "MEM" and len(numbers) == 2:
            curves.setdefault("memory, MiB", []).append((numbers[1], numbers[0]))
        elif word == "GPU" and len(numbers) == 3:
            curves.setdefault("GPU utilisation, %", []).append((numbers[2], numbers[0]))
            curves.setdefault("GPU memory, MiB", []).append((numbers[2], numbers[1]))
    if not curves:
        return page(title, "The profile has no sample.", "")
    begin = min(points[0][0] for points in curves.values())
    body = "".join(
        f"<h2>{name}: at most {max(v for _, v in points):.1f}</h2>{_svg(points, begin)}"
        for name, points in curves.items()
    )
    count = max(map(len, curves.values()))
    return page(
        title, f"{count} samples. The horizontal axis is seconds since the first one.", body
    )


def _numbers(words: Sequence[str]) -> list[float]:
    try:
        found = list(map(float, words))
    except ValueError:
        return []
    return found if all(map(math.isfinite, found)) else []


def _svg(points: Points, begin: float) -> str:
    points = _fewer(sorted(points))
    last = max(points[-1][0] - begin, 1e-3)
    top = max(max(v for _, v in points), 1e-6) * 1.05
    wide, high = _WIDTH - _LEFT, _HEIGHT - _BOTTOM
    line = " ".join(
        f"{_LEFT + (t - begin) / last * wide:.2f},{high - v / top * high:.2f}" for t, v in points
    )
    ticks = "".join(
        f'<line class="axis" stroke-dasharray="2" x1="{_LEFT}" x2="{_WIDTH}" y1="{high * (1 - n / 4):.1f}"'
        f' y2="{high * (1 - n / 4):.1f}"/><text x="0" y="{high * (1 - n / 4) + 10:.1f}">{top * n / 4:.1f}</text>'
        f'<text x="{_LEFT + n / 4 * (wide - 50):.1f}" y="{_HEIGHT - 8}">{last * n / 4:.1f} s</text>'
        for n in range(5)
    )
    view = f'viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" xmlns="http://www.w3.org/2000/svg"'
    return f'<svg {view}>{ticks}<polyline class="curve" points="{line}"/></svg>'


def _fewer(points: Points) -> Points:
    step = -(-len(points) // _MOST_POINTS)
    groups = [points[n : n + step] for n in range(0, len(points), step)]
    return [max(group, key=lambda p: p[1]) for group in groups]
