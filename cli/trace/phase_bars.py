"""Phases as bars of text: one line for each, on one scale, with how long it took. Pure."""

from typing import Any

WIDTH = 40
#: Of more phases only the longest are drawn, in their order.
DRAWN = 24
#: What is left for the names at a common terminal's width; longer ones end in "~".
_NAMES = 36


def picture(phases: list[dict[str, Any]]) -> list[str]:
    """Nothing for nothing. A phase that lasts is drawn to the end, and says so."""
    if not phases:
        return []
    begin = min(p["since"] for p in phases)
    end = max(max(p["since"], p["until"] or 0.0) for p in phases)
    whole = max(end - begin, 1e-6)
    longest = sorted(phases, key=lambda p: -((p["until"] or end) - p["since"]))[:DRAWN]
    drawn = [p for p in phases if p in longest]
    names = [_name(p) for p in drawn]
    width = max(map(len, names))
    out = [
        f"phases, {end - begin:.3f} s in all"
        + (f" (the {DRAWN} longest of {len(phases)})" if len(phases) > len(drawn) else "")
    ]
    for name, p in zip(names, drawn, strict=True):
        until = p["until"] if p["until"] is not None else end
        first = min(WIDTH - 1, int((p["since"] - begin) / whole * WIDTH))
        last = max(first + 1, min(WIDTH, round((until - begin) / whole * WIDTH)))
        bar = " " * first + "#" * (last - first) + " " * (WIDTH - last)
        took = f"{until - p['since']:.3f} s" if p["until"] is not None else "lasts"
        out.append(f"  {name:<{width}} |{bar}| {took:>10}")
    return out


def _name(p: dict[str, Any]) -> str:
    track = str(p["track"])
    where = track.rpartition(" ")[2] if track.startswith("run ") and "/" in track else ""
    name = f"{p['name']} {where}".rstrip()
    return name if len(name) <= _NAMES else name[: _NAMES - 1] + "~"
