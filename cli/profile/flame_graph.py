"""A flame graph of collapsed stacks (`a;b;c N`), as an HTML page without network. Pure.

Frames are text of a job: all of it is escaped.
"""

from collections.abc import Iterable, Iterator
from html import escape
from typing import NamedTuple

from .folded import parsed
from .page_parts import page

#: Height of a frame and width of the graph in SVG units. Narrower frames are left out.
_HEIGHT, _WIDTH, _NARROWEST = 17, 1200.0, 0.3
#: Frames in one stack, and characters of a label.
_DEEPEST, _LABEL = 250, 200
_CHAR_WIDTH = 6.7
_ZOOM = """<script>
const W = %d, all = [...document.querySelectorAll("g[data-x]")];
function zoom(x, w) {
  for (const g of all) {
    const a = (g.dataset.x - x) / w * W, b = g.dataset.w / w * W;
    g.style.display = a + b <= 0 || a >= W ? "none" : "";
    const left = Math.max(0, a), wide = Math.min(W, a + b) - left;
    const r = g.querySelector("rect"), t = g.querySelector("text");
    r.setAttribute("x", left); r.setAttribute("width", wide); t.setAttribute("x", left + 3);
    const n = Math.floor((wide - 6) / 6.7), s = g.dataset.name;
    t.textContent = n < 3 ? "" : s.length <= n ? s : s.slice(0, n - 2) + "..";
  }
}
for (const g of all) g.addEventListener("click", () => zoom(+g.dataset.x, +g.dataset.w));
document.addEventListener("keydown", e => { if (e.key === "Escape") zoom(0, W); });
</script>"""


class Node:
    """One frame with its callees. total: units in it and below it."""

    __slots__ = ("callees", "total")

    def __init__(self) -> None:
        self.total = 0
        self.callees: dict[str, Node] = {}


class _Box(NamedTuple):
    name: str
    depth: int
    x: float
    width: float
    total: int


def tree(lines: Iterable[str]) -> Node:
    """Return the merged stacks. Lines of another form are left out."""
    root = Node()
    for frames, count in parsed(lines, _DEEPEST):
        node = root
        root.total += count
        for name in frames:
            node = node.callees.setdefault(name, Node())
            node.total += count
    return root


def flame_page(
    lines: Iterable[str],
    title: str,
    *,
    seconds_per_unit: float | None = None,
    unit: str = "samples",
) -> str:
    """Return the page of a flame graph. lines: collapsed stacks. seconds_per_unit: the numbers are
    times; otherwise they count `unit`.
    """
    root = tree(lines)
    if root.total == 0:
        return page(title, "The profile has no stack: the program used no CPU time.", "")
    boxes = list(_boxes(root))
    height = (max(box.depth for box in boxes) + 1) * _HEIGHT
    parts = [
        f'<svg viewBox="0 0 {_WIDTH:g} {height}" xmlns="http://www.w3.org/2000/svg">',
        *(_svg(box, root.total, seconds_per_unit, unit) for box in boxes),
        "</svg>",
    ]
    about = (
        f"{_amount(root.total, seconds_per_unit, unit)} in all. Callers are above their callees; width"
        " is time. A click on a frame zooms in, Escape zooms out."
    )
    return page(title, about, "".join(parts) + _ZOOM % _WIDTH)


def _boxes(root: Node) -> Iterator[_Box]:
    """Yield the frames that are wide enough, callers first."""
    scale = _WIDTH / root.total
    waiting = [("all", root, 0, 0.0)]
    while waiting:
        name, node, depth, x = waiting.pop()
        yield _Box(name, depth, x, node.total * scale, node.total)
        for callee, below in sorted(node.callees.items()):
            if below.total * scale >= _NARROWEST:
                waiting.append((callee, below, depth + 1, x))
            x += below.total * scale


def _svg(box: _Box, whole: int, seconds: float | None, unit: str) -> str:
    name, y = box.name[:_LABEL], box.depth * _HEIGHT
    room = int((box.width - 6) / _CHAR_WIDTH)
    label = "" if room < 3 else name if len(name) <= room else name[: room - 2] + ".."
    about = f"{name}: {_amount(box.total, seconds, unit)}, {100 * box.total / whole:.1f} %"
    place = f'data-x="{box.x:.3f}" data-w="{box.width:.3f}" data-name="{escape(name)}"'
    return (
        f"<g {place}><title>{escape(about)}</title>"
        f'<rect x="{box.x:.3f}" y="{y}" width="{box.width:.3f}" height="{_HEIGHT - 1}" fill="{_colour(name)}"/>'
        f'<text x="{box.x + 3:.3f}" y="{y + 12}">{escape(label)}</text></g>'
    )


def _colour(name: str) -> str:
    """Return a warm colour that depends on the name only."""
    number = sum((n + 1) * ord(c) for n, c in enumerate(name))
    return f"hsl({number % 50} 85% {70 + number % 3 * 5}%)"


def _amount(total: int, seconds: float | None, unit: str) -> str:
    return f"{total} {unit}" if seconds is None else f"{total * seconds:.3f} s CPU time"
