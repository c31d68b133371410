"""Where containers' output goes on each host: to journald where the host has one, else to files of
the engine's own.
"""

from typing import Final

from ....runtime.log.logger import Log

AUTO, JOURNALD, OTHERWISE = "auto", "journald", "json-file"
#: How engines say at a start that there is none.
_WORDS: Final = ("logging driver", "journald")


class LogDrivers:
    """wanted: as the pool says. What was found out about a host is remembered."""

    def __init__(self, wanted: str, log: Log) -> None:
        self._wanted, self._log = wanted, log
        self._without: set[str] = set()

    def of(self, host: str) -> str:
        if self._wanted != AUTO:
            return self._wanted
        return OTHERWISE if host in self._without else JOURNALD

    def refused(self, host: str, sentence: str) -> bool:
        """The engine's answer to a start. True: it has no journald; make the container again, with
        what `of` says now.
        """
        if self._wanted != AUTO or not all(word in sentence for word in _WORDS):
            return False
        if host not in self._without:
            self._without.add(host)
            self._log(
                "host {}: no journald there, so the output of containers goes to files of the engine: {}",
                host,
                sentence,
            )
        return True
