"""Connections to PostgreSQL that execute the statements of `sql.statements`, and its errors.

The shared statements are written for SQLite. `translated` replaces what differs; the contract of the
store tests every statement on both.
"""

import functools
import os
import pwd
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import Diagnostic
from psycopg.pq import Conninfo, TransactionStatus

from ...protocol.errors import Refusal
from ...runtime.store_address import StoreAddress
from ..sql.statements import Rows
from ..store.contract import StoreUnreachable
from ..store.disk_errors import is_retryable as is_disk_retryable

#: Limit for a connection to be made. Requests wait for it.
CONNECT_SECS = 5
#: Limit of one read, in milliseconds.
READ_MS = 30_000
#: Limit of each wait for the server: its own limits need a server that runs.
WAIT_SECS = 40.0
#: Limit for a lock, in milliseconds: an older session of this supervisor, or a frozen one, holds it.
LOCK_MS = 5_000
#: Limit of a pause of this process within a transaction, in milliseconds: the server then ends the
#: session, or a frozen supervisor would keep the row of the lease. Shorter than LOCK_MS and a lease.
IDLE_MS = 3_000
#: Classes of errors after which the log is not what the writer takes it for: constraints, missing
#: tables, damage.
_FATAL = ("23", "42", "XX")
#: The user lacks a right; somebody can grant it.
DENIED = "42501"
#: The fence of a commit.
FENCED = "22012"
#: What libpq takes for parameters that are not set, where it does not take an empty text for that.
_IMPLIED = {
    "sslcertmode": "allow",
    "min_protocol_version": "3.0",
    "max_protocol_version": "3.0",
}
#: No value of these means that they are not set. A service sets only what nobody else does, and a
#: required way to authenticate only refuses more.
_LEFT = (b"service", b"require_auth")
#: Parameters of every connection.
_SET: dict[str, Any] = {
    "connect_timeout": CONNECT_SECS,
    "application_name": "jobscribe supervisor",
    "client_encoding": "UTF8",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
_REPLACED = (
    (re.compile("%"), "%%"),
    (re.compile(r"\?"), "%s"),
    (re.compile(r"CAST\((\w+) AS BLOB\)"), r"convert_to(\1, 'UTF8')"),
    (re.compile(r"json_extract\((\w+), '\$\.(\w+)'\)"), r"\1::json->>'\2'"),
    (re.compile(r"\binstr\("), "strpos("),
    (re.compile(r" LIKE "), " ILIKE "),
    (re.compile(" NOT INDEXED"), ""),
    (re.compile(r"\+(\w+) IN "), r"\1 IN "),
    (re.compile("BEGIN IMMEDIATE"), "BEGIN"),
)

Raw = psycopg.Connection[tuple[Any, ...]]


@functools.lru_cache(maxsize=512)
def translated(query: str) -> bytes:
    """Return a shared statement as PostgreSQL understands it."""
    for pattern, by in _REPLACED:
        query = pattern.sub(by, query)
    return query.encode()


class Connection:
    """An `SqlConnection`. raw: psycopg's connection, in autocommit mode."""

    def __init__(self, raw: Raw) -> None:
        self.raw = raw

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Rows:
        return self.raw.execute(translated(query), tuple(values))

    @property
    def in_transaction(self) -> bool:
        return self.raw.info.transaction_status != TransactionStatus.IDLE

    def close(self) -> None:
        self.raw.close()


class _Bounded(psycopg.Connection[tuple[Any, ...]]):
    """Is closed if the server does not answer in time, as a stopped process or a hanging disk.
    bounded: False for a command that reads or writes a whole log.

    It is also closed if a commit did not wait for its synchronous replica, because somebody canceled
    the wait: the server then reports success with a warning.
    """

    bounded = True
    _unreplicated = False

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        try:
            answer = super().wait(_bounded(gen) if self.bounded else gen, *args, **kwargs)
            if self._unreplicated:
                raise _NotReplicated("the wait for the synchronous replica was canceled")
        except (_NoAnswer, _NotReplicated):
            self.close()
            raise
        return answer

    def hear(self, notice: Diagnostic) -> None:
        if notice.source_function == "SyncRepWaitForLSN":
            self._unreplicated = True


class _NoAnswer(psycopg.OperationalError):
    pass


class _NotReplicated(psycopg.OperationalError):
    pass


def _bounded(gen: PQGen[RV]) -> PQGen[RV]:
    """Pass on a generator of psycopg, which is told at intervals that there is nothing to do."""
    deadline = time.monotonic() + WAIT_SECS
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                raise _NoAnswer(f"the server did not answer within {WAIT_SECS:g} s")
            wanted = gen.send(ready)
    except StopIteration as e:
        result: RV = e.value
        return result


def _settled(address: StoreAddress) -> dict[str, Any]:
    """Return the parameters of the address. Every other one that a variable of the environment could
    set (PGUSER, PGPASSWORD, PGSSLROOTCERT, ...) has the default that libpq has without variables.
    """
    given = conninfo_to_dict(address.url)
    user = given.get("user") or pwd.getpwuid(os.geteuid()).pw_name
    return _defaults() | {"port": "5432", "user": user, "dbname": str(user)} | given


@functools.cache
def _defaults() -> dict[str, Any]:
    return {
        (name := option.keyword.decode()): (option.compiled or b"").decode()
        or _IMPLIED.get(name, "")
        for option in Conninfo.get_defaults()
        if option.envvar and option.keyword not in _LEFT
    }


def connect(
    address: StoreAddress,
    password_file: str | None,
    *,
    reads: bool = False,
    bounded: bool = True,
) -> Raw:
    """Connect, and use the site's schema. reads: read-only. bounded: with a time limit for each
    wait, and for each statement that reads. Raises psycopg.Error, OSError.
    """
    # a damaged file has a wrong password
    password = (
        None if password_file is None else Path(password_file).read_text(errors="replace").strip()
    )
    own = {"password": password} if password else {}
    raw = _Bounded.connect(
        **(_settled(address) | _SET | own),
        autocommit=True,
    )
    raw.add_notice_handler(raw.hear)
    try:
        raw.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(address.schema)))
        raw.execute("SET default_transaction_isolation = 'read committed'")
        # the server notices soon that this machine is gone, and releases its locks
        raw.execute(
            "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
        )
        if reads:
            raw.execute("SET default_transaction_read_only = on")
            raw.execute(f"SET statement_timeout = {READ_MS if bounded else 0}".encode())
        else:
            raw.execute(f"SET lock_timeout = {LOCK_MS}".encode())
            if bounded:
                raw.execute(f"SET idle_in_transaction_session_timeout = {IDLE_MS}".encode())
            # stricter values, which wait for replicas, stay
            raw.execute(
                "SELECT set_config('synchronous_commit', 'on', false)"
                " WHERE current_setting('synchronous_commit') IN ('off', 'local')"
            )
    except BaseException:
        raw.close()
        raise
    raw.bounded = bounded
    return raw


def is_lost(raw: Raw, error: BaseException) -> bool:
    """Return whether the connection was lost, so that the outcome of its last statement is unknown."""
    if raw.closed or isinstance(error, psycopg.errors.IdleInTransactionSessionTimeout):
        return True
    state = getattr(error, "sqlstate", None)
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and (
        state is None or state.startswith(("08", "57P"))
    )


def is_retryable(error: BaseException) -> bool:
    """Return whether a retry is allowed. The failed transaction changed nothing."""
    if isinstance(error, psycopg.Error):
        return error.sqlstate == DENIED or not (error.sqlstate or "").startswith(_FATAL)
    return is_disk_retryable(error)


def describe(error: BaseException) -> str:
    """Return the first line of the error, with PostgreSQL's code for it."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    state = getattr(error, "sqlstate", None)
    return f"{text} ({state})" if state else text


def refusal(error: Exception, address: StoreAddress) -> Refusal:
    """Return the refusal for an error while connecting or reading."""
    text = describe(error)
    if any(
        word in str(error)
        for word in ("authentication failed", "no password supplied", "no pg_hba.conf entry")
    ):
        return Refusal(
            "badConfig",
            f"{address.name} refuses the user: {text}; correct the user in store.url, store.password_file,"
            " or pg_hba.conf of the server",
        )
    if getattr(error, "sqlstate", None) == DENIED:
        return Refusal(
            "badConfig",
            f"{address.name} denies the user a right: {text}; the user must own the schema, or be allowed to"
            " create it: GRANT CREATE ON DATABASE ... TO ...",
        )
    if isinstance(error, psycopg.Error) and not is_retryable(error):
        return Refusal("storeDamaged", f"{address.name} is damaged: {text}")
    return StoreUnreachable(f"{address.name} cannot be used: {text}")
