"""Advice for values that cannot be sent to another process. Pure."""

import types

#: Beginning of module and class name -> advice; the first match counts.
_FIXES = (
    (("_thread.", "threading."), "create it inside the function, or leave it out in __getstate__"),
    (("_io.", "io.", "tempfile."), "pass the name of the file, and open it inside the function"),
    (("_socket.", "socket.", "ssl.", "_ssl."), "pass the address, and connect inside the function"),
    (("sqlite3.", "psycopg", "pymysql", "sqlalchemy."), "pass the address of the database, and connect inside the function"),
    (("multiprocessing.", "concurrent.futures", "subprocess."), "create it inside the function"),
    (("asyncio.", "_asyncio."), "create it inside the function, in asyncio.run"),
    (("weakref.", "_weakref"), "pass the object itself, or leave it out in __getstate__"),
    (("jobscribe.client.",), "create the client inside the function, from an address and a token file there"),
    (("contextvars.", "_contextvars"), "pass the value of the variable"),
)  # fmt: skip
_GENERIC = "create it inside the function, or pass the plain data from which it is made"


def fix_for(value: object) -> str:
    """Return what to do about this value."""
    if isinstance(value, types.GeneratorType | map | filter | zip):
        return "pass list(...) of it"
    if isinstance(value, types.CoroutineType | types.AsyncGeneratorType):
        return "pass the function, and call it inside the job with asyncio.run"
    if isinstance(value, types.MappingProxyType):
        return "pass dict(...) of it"
    if isinstance(value, types.FrameType | types.TracebackType | types.CodeType):
        return "pass its text, such as traceback.format_exc()"
    name = type_name(value)
    return next((fix for starts, fix in _FIXES if name.startswith(starts)), _GENERIC)


def type_name(value: object) -> str:
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
