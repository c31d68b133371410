"""Phases as text bars: one line per phase, on one time scale, with its duration. Pure."""

from typing import Any

WIDTH = 40
#: Maximum number of bars; with more phases, the longest are drawn, in order of time.
MAX_BARS = 24
#: Width for names in an 80-column terminal; longer names end in "~".
_NAME_WIDTH = 36


def picture(phases: list[dict[str, Any]]) -> list[str]:
    """Return the bars as lines; empty without phases. An unfinished phase is drawn to the end of
    the scale.
    """
    if not phases:
        return []
    begin = min(p["since"] for p in phases)
    end = max(max(p["since"], p["until"] or 0.0) for p in phases)
    total = max(end - begin, 1e-6)
    longest = sorted(phases, key=lambda p: -((p["until"] or end) - p["since"]))[:MAX_BARS]
    drawn = [p for p in phases if p in longest]
    names = [_name(p) for p in drawn]
    width = max(map(len, names))
    out = [
        f"phases, {end - begin:.3f} s in total"
        + (f" (the {MAX_BARS} longest of {len(phases)})" if len(phases) > len(drawn) else "")
    ]
    for name, p in zip(names, drawn, strict=True):
        until = p["until"] if p["until"] is not None else end
        first = min(WIDTH - 1, int((p["since"] - begin) / total * WIDTH))
        last = max(first + 1, min(WIDTH, round((until - begin) / total * WIDTH)))
        bar = " " * first + "#" * (last - first) + " " * (WIDTH - last)
        took = f"{until - p['since']:.3f} s" if p["until"] is not None else "unfinished"
        out.append(f"  {name:<{width}} |{bar}| {took:>10}")
    return out


def _name(p: dict[str, Any]) -> str:
    track = str(p["track"])
    where = track.rpartition(" ")[2] if track.startswith("run ") and "/" in track else ""
    name = f"{p['name']} {where}".rstrip()
    return name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 1] + "~"
