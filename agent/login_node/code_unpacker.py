"""Installation of the agent's code on a machine without jobscribe: this file's text is executed
there, from stdin.

Standard library only, no import of this package. Request: one line of JSON, `{"base": folder,
"digest", "sizes": {path: bytes}}`, followed by a tar archive if code is sent. Answer: one line of
JSON after MARK, `{"have": bool}` or `{"error": sentence}`.

    <base>/code/<digest>/        created complete by one rename, never changed afterwards

Folders that other users may write to or replace are refused, because the code in them is executed.
"""

import contextlib
import grp
import json
import os
import pwd
import shutil
import stat
import sys
import tarfile
import time

#: Start of the answer's line, to tell it from text that a login prints before or after.
MARK = "@@jobscribe@@ "
#: Code unused for OLD_SECS is removed if nothing refers to it; the KEPT newest versions stay.
OLD_SECS, KEPT = 24 * 3600.0, 2


def main() -> int:
    os.umask(0o077)
    try:
        request = json.loads(sys.stdin.buffer.readline())
        have = ensure_code(
            request["base"], request["digest"], request["sizes"], send=bool(request.get("sent"))
        )
        answer: dict[str, object] = {"have": have}
    except OSError as e:
        answer = {
            "error": f"cannot install the code: {e.strerror}: {e.filename or ''}".rstrip(": ")
        }
    except (ValueError, KeyError, tarfile.TarError) as e:
        answer = {"error": str(e)}
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")
    return 0


def ensure_code(base: str, digest: str, sizes: "dict[str, int]", *, send: bool) -> bool:
    """Return whether the code is complete. send: if not, read it from stdin first."""
    ensure_private_folder(base)
    code = f"{base}/code"
    ensure_private_folder(code)
    there = f"{code}/{digest}"
    if not _is_complete(there, sizes):
        if not send:
            return False
        _unpack(code, there, sizes)
    os.utime(there)
    with contextlib.suppress(OSError):
        prune(base, digest)
    return True


def _is_complete(folder: str, sizes: "dict[str, int]") -> bool:
    """Return whether all files exist: scratch file systems delete unused files one by one."""
    try:
        return all(os.stat(f"{folder}/{name}").st_size == size for name, size in sizes.items())
    except OSError:
        return False


def _unpack(code: str, there: str, sizes: "dict[str, int]") -> None:
    new = f"{there}.{os.uname().nodename}-{os.getpid()}.new"
    os.mkdir(new, 0o700)
    try:
        with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as tar:
            for member in tar:
                if not member.isreg() or member.name not in sizes:
                    raise ValueError(f"{member.name!r} does not belong to the code")
                source = tar.extractfile(member)
                os.makedirs(os.path.dirname(f"{new}/{member.name}"), 0o700, exist_ok=True)
                assert source is not None
                with open(f"{new}/{member.name}", "xb") as f:
                    shutil.copyfileobj(source, f)
        if not _is_complete(new, sizes):
            raise ValueError("the received code is incomplete")
        if _is_complete(there, sizes):  # another process was faster
            return
        # damaged; processes that run from it have its files open, or fail either way
        if os.path.lexists(there):
            os.rename(there, f"{there}.{os.getpid()}-{time.time_ns()}.old")
        try:
            os.rename(new, there)
        except OSError:
            if not _is_complete(there, sizes):  # otherwise another process was faster
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def prune(base: str, digest: str) -> None:
    """Remove old code that neither an agent nor a Slurm job that may still start needs."""
    code = f"{base}/code"
    entries = []
    for name in os.listdir(code):
        if name == digest:
            continue
        with contextlib.suppress(OSError):
            entries.append((os.stat(f"{code}/{name}").st_mtime, name))
    whole = [(at, name) for at, name in sorted(entries, reverse=True) if "." not in name]
    spared = {name for _, name in whole[:KEPT]}
    old = [name for at, name in entries if time.time() - at > OLD_SECS and name not in spared]
    if not old:
        return
    texts = _references(base)
    for name in old:
        if not any(name.encode() in text for text in texts):
            shutil.rmtree(f"{code}/{name}", ignore_errors=True)


def _references(base: str) -> "list[bytes]":
    """Return all files that name code in use: of agents, and of jobs without a known end."""
    out = []
    agents = f"{base}/agent"
    for key in os.listdir(agents) if os.path.isdir(agents) else ():
        folder = f"{agents}/{key}"
        names = [f"{folder}/started.json"]
        ledger = f"{folder}/batch"
        for entry in os.listdir(ledger) if os.path.isdir(ledger) else ():
            run = f"{folder}/run/{entry.removesuffix('.json')}"
            names += [
                f"{ledger}/{entry}",
                f"{run}/batch.sh",
                f"{run}/script.sh",
                f"{run}/batch.json",
            ]
        for path in names:
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as f:
                out.append(f.read(1 << 20))
    return out


# ---- folders


def ensure_private_folder(path: str) -> None:
    """Create a folder and its parents, private to this user, or check an existing one. Raises
    ValueError, OSError.
    """
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{path} is not a folder")
    if status.st_uid != os.geteuid():
        raise ValueError(
            f"{path} belongs to {_name(status.st_uid)}: move it away, or choose another folder for this cluster"
        )
    if stat.S_IMODE(status.st_mode) != 0o700:
        os.chmod(path, 0o700)
    above = os.path.realpath(path)
    while above != "/":
        above = os.path.dirname(above)
        _check_parent(above)


def _check_parent(folder: str) -> None:
    """Check that no other user can replace an entry of this folder, unless it is sticky."""
    status = os.stat(folder)
    why = None
    if status.st_uid not in (0, os.geteuid()):
        why = f"belongs to {_name(status.st_uid)}"
    elif status.st_mode & stat.S_ISVTX:
        return
    elif status.st_mode & stat.S_IWOTH:
        why = "is writable by everybody"
    elif status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid):
        why = f"is writable by a group (number {status.st_gid})"
    if why is not None:
        raise ValueError(
            f"{folder} {why}, who could replace our code: choose another folder for this cluster"
        )


def _is_private_group(gid: int) -> bool:
    """Return whether it is root's group or the user's private group."""
    if gid == 0:
        return True
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


if __name__ == "__main__":
    sys.exit(main())
