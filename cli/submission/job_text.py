"""Text of a job file, for people: YAML that `schema.text` reads as the same data."""

import re
from typing import Any

#: Texts that need no quotes: YAML and JSON read them as texts, too.
_PLAIN = re.compile(r"[A-Za-z_/.][A-Za-z0-9_/.@-]*( [A-Za-z0-9_/.@-]+)*")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n", "~"}


def job_text(data: dict[str, Any]) -> str:
    """Return the data as YAML, in the order of its keys; texts of several lines as blocks."""
    import yaml

    # without anchors, which the reader refuses
    members = {"ignore_aliases": lambda self, data: True}
    dumper: Any = type("JobFileDumper", (yaml.SafeDumper,), members)
    dumper.add_representer(str, _text)
    out: str = yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True, width=1_000_000)
    return out


def _text(dumper: Any, value: str) -> Any:
    """Quote every text that is not plain."""
    style = '"'
    if "\n" in value:
        style = "|"
    elif _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        style = ""
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style or None)
