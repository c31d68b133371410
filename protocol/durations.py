"""Durations as people write them: seconds, a number with a unit, or the time format of Slurm. Pure
text parsing, no clock.
"""

import re

#: Completes "a time is ...": the accepted forms.
FORM = "seconds, or a text such as '90s', '15m', '1h' or '2d', or as in Slurm '10:00' (minutes:seconds), '1:30:00' or '1-12:00:00'"

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([A-Za-z]?)")
#: sbatch(1), --time: minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes,
#: days-hours:minutes:seconds
_CLOCK = re.compile(r"(?:([0-9]{1,6}):)?([0-9]{1,6}):([0-5]?[0-9])")
_DAYS = re.compile(r"([0-9]{1,6})-([01]?[0-9]|2[0-3])(?::([0-5]?[0-9])(?::([0-5]?[0-9]))?)?")
#: 2d12:00:00, with any of the first parts left out
_UNIT_DAYS = re.compile(r"([0-9]{1,6})[dD](?:(?:([0-9]{1,6}):)?([0-5]?[0-9]):)?([0-5]?[0-9])")


def seconds(text: str) -> float | None:
    """Return the duration in seconds, or None if the text is no duration. A plain number means
    seconds; in Slurm it means minutes.
    """
    if match := _AMOUNT.fullmatch(text):
        unit = _UNITS.get(match[2].lower())
        return None if unit is None else float(match[1]) * unit
    if match := _DAYS.fullmatch(text) or _UNIT_DAYS.fullmatch(text):
        days, hours, minutes, secs = (int(part or 0) for part in match.groups())
        return float(days * 86400 + hours * 3600 + minutes * 60 + secs)
    if match := _CLOCK.fullmatch(text):
        if match[1] is not None and int(match[2]) > 59:
            return None
        hours, minutes, secs = (int(part or 0) for part in match.groups())
        return float(hours * 3600 + minutes * 60 + secs)
    return None
