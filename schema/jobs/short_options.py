"""Secrets behind short options of well-known programs (`sshpass -p X`, `mysql -pX`, `curl -u me:X`),
whose names do not say so. Pure.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple


class _Options(NamedTuple):
    """Options of a program. either: their value is the next word or the rest of the word. joined: it
    is the rest of the word only. pairs: it is `USER:SECRET`; the secret is behind the separator.
    once: the words behind it are those of another command.
    """

    either: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    once: bool = False


class Secret(NamedTuple):
    """A secret in a word. n: number of the word. begin: of the secret in it. option: for a person."""

    n: int
    begin: int
    option: str


_P, _CAPITAL_P, _W = _Options(("-p",)), _Options(("-P",)), _Options(("-w",))
_MYSQL = _ARCHIVE = _Options(joined=("-p",))
_PROGRAMS: Mapping[str, _Options] = {
    "sshpass": _Options(("-p",), once=True),
    **dict.fromkeys(("mongo", "mongosh", "mongodump", "mongorestore", "mongoexport"), _P),
    **dict.fromkeys(
        ("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mariadb", "mariadb-dump"), _MYSQL
    ),
    **dict.fromkeys(("7z", "7za", "7zr", "rar", "unrar"), _ARCHIVE),
    **dict.fromkeys(("zip", "unzip", "sqlcmd", "bcp", "ipmitool"), _CAPITAL_P),
    **dict.fromkeys(("ldapsearch", "ldapadd", "ldapmodify", "ldapdelete", "ldapwhoami"), _W),
    "redis-cli": _Options(("-a",)),
    "curl": _Options(pairs=("-u", "--user", "-U", "--proxy-user")),
    "lftp": _Options(pairs=("-u",)),
    "smbclient": _Options(pairs=("-U",)),
}
#: `docker login -p X`; `docker run -p` is a port.
_LOGINS = frozenset({"docker", "podman", "nerdctl", "skopeo", "buildah", "oras", "registry"})
_SEPARATOR = re.compile(r"[:,%]")
#: `-p X` of other programs: a value of this form is no number, path, port or plain word.
_RANDOM = re.compile(r"(?=.*[A-Za-z])(?=.*(?:\d|[!#^&*?]))[^\s/:.,=$]{8,128}\Z")
_NOT_SECRET = frozenset(
    {
        *("srun", "sbatch", "salloc", "sinfo", "squeue", "mpirun", "mpiexec"),
        *("ssh", "scp", "sftp", "mkdir", "cp", "rsync", "tar", "install", "git", "nmap"),
        *("docker", "podman", "nerdctl"),
    }
)
#: A program with its options in a text, to the end of the command.
_IN_TEXT = re.compile(
    rf"(?<![\w.-])(?:{'|'.join(map(re.escape, sorted(_PROGRAMS)))}|(?:{'|'.join(sorted(_LOGINS))})\s+login)"
    r"(?=\s)[^\n;|&]{1,4096}"
)
_WORD = re.compile(r"(?:\"[^\"\n]*\"|'[^'\n]*'|\\.|[^\s\"'\\])+")


def secrets(words: Sequence[str], *, guess: bool = True) -> Iterator[Secret]:
    """Yield the secrets in the words of a command. guess: also values of `-p` of other programs that
    look random.
    """
    program: _Options | None = None
    plain = False
    for n, word in enumerate(words):
        name = word.rpartition("/")[2]
        plain = plain or name in _NOT_SECRET
        if name in _PROGRAMS:
            program = _PROGRAMS[name]
        elif name == "login" and n and words[n - 1].rpartition("/")[2] in _LOGINS:
            program = _P
        elif program is not None:
            found = _of_program(program, words, n)
            if found is not None:
                yield found
                program = None if program.once else program
        elif guess and not plain and n and words[n - 1] in ("-p", "-P") and _RANDOM.match(word):
            yield Secret(n, 0, words[n - 1])


def replaced(text: str, replace: Callable[[str, str], str]) -> str:
    """Return the text with replacements of secrets. replace(option, value with its quotes)."""
    return _IN_TEXT.sub(lambda m: _command(m[0], replace), text)


def _command(text: str, replace: Callable[[str, str], str]) -> str:
    spans = [m.span() for m in _WORD.finditer(text)]
    out, at = [], 0
    for n, begin, option in secrets([text[a:b] for a, b in spans], guess=False):
        first, end = spans[n][0] + begin, spans[n][1]
        out += [text[at:first], replace(option, text[first:end])]
        at = end
    return "".join(out) + text[at:]


def _of_program(program: _Options, words: Sequence[str], n: int) -> Secret | None:
    """Return the secret in a word that belongs to this program."""
    word, before = words[n], words[n - 1]
    if before in program.either and word:
        return Secret(n, 0, before)
    for option in (*program.either, *program.joined):
        if word.startswith(option) and len(word) > len(option):
            return Secret(n, len(option), option)
    pair, begin = before, 0
    if before not in program.pairs:
        pair = next((o for o in program.pairs if len(o) == 2 and word.startswith(o)), "")
        begin = len(pair)
    separator = _SEPARATOR.search(word, begin) if pair else None
    if separator is None or separator.end() == len(word):
        return None
    return Secret(n, separator.end(), pair)
