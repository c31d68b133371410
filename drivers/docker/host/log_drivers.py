"""The log driver of containers on each host: journald if the host has it, otherwise files of the
engine. Only the choice is made here.
"""

from typing import Final

from ....runtime.log.logger import Log

AUTO, JOURNALD, FALLBACK = "auto", "journald", "json-file"
#: Words in the engine's error if journald is missing.
_WORDS: Final = ("logging driver", "journald")


class LogDrivers:
    """Log driver of each host. wanted: the setting of the pool. The choice for each host is
    cached.
    """

    def __init__(self, wanted: str, log: Log) -> None:
        self._wanted, self._log = wanted, log
        self._without: set[str] = set()

    def choose(self, host: str) -> str:
        if self._wanted != AUTO:
            return self._wanted
        return FALLBACK if host in self._without else JOURNALD

    def fall_back(self, host: str, sentence: str) -> bool:
        """Handle the engine's error of a start. Return True if the host has no journald: the caller
        then creates the container again with the driver that `choose` returns.
        """
        if self._wanted != AUTO or not all(word in sentence for word in _WORDS):
            return False
        if host not in self._without:
            self._without.add(host)
            self._log(
                "host {}: journald is not available, so the engine stores the output of containers in files: {}",
                host,
                sentence,
            )
        return True
