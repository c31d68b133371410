"""Job arrays: parse the text of the indices and expand one submission into one run per index.

All runs of an array share one simulation id. The run of index n has the computeModel `<model>_<n>`.
The computeJids of the *group* all start with `<uid>-<sid>-`.
"""

import re
from collections.abc import Iterable

import msgspec

from ..errors import Refusal
from ..ids import compute_jid, printable, split_jid
from .requests import MAX_BULK, RunSpec

#: The highest allowed index.
MAX_INDEX = 999_999
#: Upper limit of concurrent runs of an array, equal to the limit of `RunSpec.at_once`.
MAX_AT_ONCE = 100_000
#: Maximum length of the index text, in characters.
MAX_TEXT = 80_000
#: Each value has two names: one of jobscribe, and the one that Slurm scripts expect.
_INDEX = ("ARRAY_INDEX", "SLURM_ARRAY_TASK_ID")
_COUNT = ("ARRAY_COUNT", "SLURM_ARRAY_TASK_COUNT")
_MIN = ("ARRAY_MIN", "SLURM_ARRAY_TASK_MIN")
_MAX = ("ARRAY_MAX", "SLURM_ARRAY_TASK_MAX")
_GROUP = ("SLURM_ARRAY_JOB_ID",)
#: Variables that are set in the environment of each run of an array.
VARIABLES = (*_INDEX, *_COUNT, *_MIN, *_MAX, *_GROUP)

_PART = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_MODEL = re.compile(r"(.+)_([0-9]{1,6})")
_EXAMPLE = "indices look like 0-9,20,30-40:2%5 (first-last:step, at most 5 at once)"


class Indices(msgspec.Struct, frozen=True):
    """The indices of an array, in ascending order and without duplicates.

    at_once: the maximum number of concurrent runs; None: no limit of its own.
    """

    numbers: tuple[int, ...]
    at_once: int | None = None


def parse_indices(text: str) -> Indices:
    """Parse an index text such as `0-9,20,30-40:2%5`. Raises Refusal("badRequest")."""
    if len(text) > MAX_TEXT:
        raise Refusal(
            "badRequest",
            f"the index text of an array has at most {MAX_TEXT} characters; this one has {len(text)}",
        )
    listed, percent, limit = text.partition("%")
    at_once = _at_once(limit) if percent else None
    numbers: set[int] = set()
    for part in listed.split(","):
        numbers.update(_range(part))
        if len(numbers) > MAX_BULK:
            raise Refusal(
                "badRequest",
                f"an array has at most {MAX_BULK} indices; use a larger step, or several arrays",
            )
    return Indices(tuple(sorted(numbers)), at_once)


def format_indices(indices: Indices) -> str:
    """Format indices as the shortest text without steps that `parse_indices` accepts."""
    parts: list[str] = []
    first = last = -2
    for n in (*indices.numbers, -2):
        if n == last + 1 and n >= 0:
            last = n
            continue
        if first >= 0:
            parts.append(f"{first}-{last}" if last > first else f"{first}")
        first = last = n
    return ",".join(parts) + ("" if indices.at_once is None else f"%{indices.at_once}")


def expand(spec: RunSpec, indices: Indices) -> tuple[RunSpec, ...]:
    """Return the run of each index, in order. Raises Refusal("badRequest") if an index, a name or a
    variable is not allowed.
    """
    numbers = indices.numbers
    if not numbers or len(numbers) > MAX_BULK:
        raise Refusal(
            "badRequest", f"an array has 1 to {MAX_BULK} indices; this one has {len(numbers)}"
        )
    for name in VARIABLES:
        if name in spec.env:
            raise Refusal(
                "badRequest",
                f"the array itself sets {name} in each run; remove it from the run's environment",
            )
    _check_names(spec, numbers)
    shared = {
        **dict.fromkeys(_COUNT, str(len(numbers))),
        **dict.fromkeys(_MIN, str(min(numbers))),
        **dict.fromkeys(_MAX, str(max(numbers))),
        **dict.fromkeys(_GROUP, spec.simulation_id),
    }
    at_once = spec.at_once if indices.at_once is None else indices.at_once
    return tuple(
        msgspec.structs.replace(
            spec,
            compute_model=index_model(spec.compute_model, n),
            env={**spec.env, **shared, **dict.fromkeys(_INDEX, str(n))},
            at_once=at_once,
        )
        for n in numbers
    )


def index_model(model: str, index: int) -> str:
    """Return the computeModel of one index."""
    return f"{model}_{index}"


def parse_index(jid: str) -> tuple[str, int | None]:
    """Split the computeModel of a computeJid into (model, index). The index is None if the run is
    not part of an array. The inverse of `index_model`.
    """
    model = split_jid(jid)[2]
    match = _MODEL.fullmatch(model)
    if match is None or index_model(match[1], int(match[2])) != model:
        return model, None
    return match[1], int(match[2])


def group_prefix(uid: str, sid: str) -> str:
    """Return the prefix that all computeJids of a group share, and no other computeJid has."""
    return f"{uid}-{sid}-"


def _check_names(spec: RunSpec, numbers: Iterable[int]) -> None:
    """Check the range of the indices, and the length of the longest computeModel."""
    low, high = min(numbers), max(numbers)
    if low < 0 or high > MAX_INDEX:
        raise Refusal(
            "badRequest",
            f"an array index is 0 to {MAX_INDEX}; got {low if low < 0 else high}",
        )
    try:
        compute_jid(spec.uid, spec.simulation_id, index_model(spec.compute_model, high))
    except Refusal:
        sentence = f"the computeModel {spec.compute_model} is too long for an array: with _{high} it has more than 64 characters"
        raise Refusal("badRequest", sentence) from None


def _range(part: str) -> range:
    match = _PART.fullmatch(part)
    if match is None:
        problem = (
            "the index text has an empty part"
            if not part
            else f"'{printable(part[:40])}' is neither an index nor a range"
        )
        raise Refusal("badRequest", f"{problem}; {_EXAMPLE}")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    step = 1 if match[3] is None else int(match[3])
    if max(first, last) > MAX_INDEX:
        raise Refusal("badRequest", f"an array index is 0 to {MAX_INDEX}; got {part}")
    if last < first:
        raise Refusal("badRequest", f"the range {part} is reversed; put the lower index first")
    if step == 0:
        raise Refusal("badRequest", f"{part} has step 0; the step must be 1 or more")
    found = range(first, last + 1, step)
    if len(found) > MAX_BULK:
        raise Refusal(
            "badRequest", f"an array has at most {MAX_BULK} indices; {part} alone has {len(found)}"
        )
    return found


def _at_once(text: str) -> int:
    if (
        not (text.isascii() and text.isdigit())
        or len(text) > 9
        or not 1 <= int(text) <= MAX_AT_ONCE
    ):
        raise Refusal(
            "badRequest",
            f"after % comes the number of concurrent runs, 1 to {MAX_AT_ONCE}; got '{printable(text[:40])}'",
        )
    return int(text)
