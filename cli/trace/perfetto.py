"""Conversion of a trace to Chrome trace events for Perfetto: phases as slices, events and log lines
as points, causes as arrows. Pure.

Each component (`front`, `supervisor`, ...) is a process, each of its tracks a thread. Times are
whole microseconds since the first one; `otherData.origin` is that time in unix seconds.
"""

from typing import Any

_ORDER = ("front", "supervisor", "agent", "command", "container", "slurm")
#: Tracks of a process for events and for log lines.
_EVENTS, _LINES = "events", "log"
_SHOWN = 200

TraceEvent = dict[str, Any]


def chrome_trace(answer: dict[str, Any]) -> TraceEvent:
    """Return the JSON object for a trace: its first match, and the other matches that have
    timelines.
    """
    timelines = [answer, *(answer.get("others") or [])]
    times = [t for timeline in timelines for t in _times(timeline)]
    trace = _Trace(min(times, default=0.0), max(times, default=0.0))
    for timeline in timelines:
        trace.timeline(timeline)
    other = {"id": answer.get("id"), "origin": trace.origin}
    return {
        "traceEvents": trace.names() + trace.events,
        "displayTimeUnit": "ms",
        "otherData": other,
    }


def _times(timeline: dict[str, Any]) -> list[float]:
    found = [
        float(i.get("orderAt", i["at"]))
        for i in (*(timeline.get("items") or []), *(timeline.get("lines") or []))
    ]
    return found + [
        float(t)
        for p in timeline.get("phases") or []
        for t in (p["since"], p["until"])
        if t is not None
    ]


class _Trace:
    def __init__(self, origin: float, end: float) -> None:
        self.origin, self._end = origin, end
        self.events: list[TraceEvent] = []
        self._tracks: dict[tuple[str, str], int] = {}
        #: End of each track's last slice: slices of a track must not overlap or go back in time.
        self._free: dict[tuple[int, int], int] = {}
        self._flows = 0

    def timeline(self, timeline: dict[str, Any]) -> None:
        for p in timeline.get("phases") or []:
            until = p["until"] if p["until"] is not None else self._end
            pid, tid = self._track(p["component"], p["track"])
            args = {"until": "lasts" if p["until"] is None else p["until"]}
            self._slice(pid, tid, p["name"], self._us(p["since"]), self._us(until), args)
        self._points(timeline.get("items") or [])
        for line in timeline.get("lines") or []:
            pid, tid = self._track(
                line.get("component", "supervisor"), f"{_LINES} {line['source']}"
            )
            self._point(
                pid,
                tid,
                str(line["text"])[:_SHOWN],
                float(line.get("orderAt", line["at"])),
                {"source": line["source"]},
            )

    def _points(self, items: list[dict[str, Any]]) -> None:
        """Add events: as slices of a microsecond if they have or are a cause, because arrows
        connect slices; otherwise as points.
        """
        causes = {i["position"]: (i.get("cause") or {}).get("position") for i in items}
        ends = {p for p, cause in causes.items() if cause in causes} | {
            c for c in causes.values() if c in causes
        }
        slices: dict[Any, TraceEvent] = {}
        for item in items:
            pid, tid = self._track(item["component"], _EVENTS)
            args = {
                "source": item["source"],
                "position": item["position"],
                "cause": item.get("cause"),
            }
            if item["position"] not in ends:
                self._point(pid, tid, _title(item), float(item["at"]), args)
                continue
            at = self._us(item["at"])
            slices[item["position"]] = self._slice(pid, tid, _title(item), at, at + 1, args)
            cause = slices.get(causes[item["position"]])
            if cause is not None:
                self._arrow(cause, slices[item["position"]])

    def _slice(
        self, pid: int, tid: int, name: str, since: int, until: int, args: TraceEvent
    ) -> TraceEvent:
        since = max(since, self._free.get((pid, tid), 0))
        dur = max(1, until - since)
        event: TraceEvent = {
            "name": name,
            "cat": "phase",
            "ph": "X",
            "ts": since,
            "dur": dur,
            "pid": pid,
            "tid": tid,
            "args": args,
        }
        self._free[pid, tid] = since + dur
        self.events.append(event)
        return event

    def _point(self, pid: int, tid: int, name: str, at: float, args: TraceEvent) -> None:
        self.events.append(
            {
                "name": name,
                "cat": "point",
                "ph": "i",
                "s": "t",
                "ts": self._us(at),
                "pid": pid,
                "tid": tid,
                "args": args,
            }
        )

    def _arrow(self, cause: TraceEvent, effect: TraceEvent) -> None:
        self._flows += 1
        begin = {"name": "cause", "cat": "cause", "id": self._flows}
        self.events.append(
            {**begin, "ph": "s", "ts": cause["ts"], "pid": cause["pid"], "tid": cause["tid"]}
        )
        # Draw an effect no earlier than its cause, also if the clock was set back.
        at = max(effect["ts"], cause["ts"])
        self.events.append(
            {**begin, "ph": "f", "bp": "e", "ts": at, "pid": effect["pid"], "tid": effect["tid"]}
        )

    def _track(self, component: str, track: str) -> tuple[int, int]:
        key = (component, track)
        if key not in self._tracks:
            self._tracks[key] = len(self._tracks) + 1
        return _pid(component), self._tracks[key]

    def _us(self, at: float) -> int:
        return max(0, round((float(at) - self.origin) * 1e6))

    def names(self) -> list[TraceEvent]:
        out: list[TraceEvent] = []
        for component in dict.fromkeys(component for component, _ in self._tracks):
            pid = _pid(component)
            out.append(
                {
                    "name": "process_name",
                    "ph": "M",
                    "ts": 0,
                    "pid": pid,
                    "tid": 0,
                    "args": {"name": component},
                }
            )
            out.append(
                {
                    "name": "process_sort_index",
                    "ph": "M",
                    "ts": 0,
                    "pid": pid,
                    "tid": 0,
                    "args": {"sort_index": pid},
                }
            )
        for (component, track), tid in self._tracks.items():
            out.append(
                {
                    "name": "thread_name",
                    "ph": "M",
                    "ts": 0,
                    "pid": _pid(component),
                    "tid": tid,
                    "args": {"name": track},
                }
            )
        return out


def _pid(component: str) -> int:
    return 1 + (_ORDER.index(component) if component in _ORDER else len(_ORDER))


def _title(item: dict[str, Any]) -> str:
    """Return the sentence of an event, without the time and interval before it."""
    return str(item["text"])[36:][:_SHOWN] or str(item["text"])
