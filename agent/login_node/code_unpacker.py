"""What brings an agent's code to a machine where nothing of ours is yet: this file's own text is
executed there, fed by stdin.

Standard library only, and nothing of this package. The request is a line of JSON: `{"base": folder,
"digest", "sizes": {path: bytes}}`, and behind it, where code is sent, a tar archive. Answered by a
line of JSON behind MARK: `{"have": bool}` or `{"error": sentence}`.

    <base>/code/<digest>/        made complete by one rename, and never changed afterwards

A folder that others may write to, or may put another one in the place of, is refused: what lies
there is executed.
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

#: An answer's line begins with it: what a login prints, before or behind, is no answer.
MARK = "@@jobscribe@@ "
#: Code that no agent was started from for so long is taken away, if nothing refers to it (seconds);
#: so many are kept anyway.
OLD_SECS, KEPT = 24 * 3600.0, 2


def main() -> int:
    os.umask(0o077)
    try:
        request = json.loads(sys.stdin.buffer.readline())
        have = unpacked(
            request["base"], request["digest"], request["sizes"], send=bool(request.get("sent"))
        )
        answer: dict[str, object] = {"have": have}
    except OSError as e:
        answer = {
            "error": f"the code cannot be put there: {e.strerror}: {e.filename or ''}".rstrip(": ")
        }
    except (ValueError, KeyError, tarfile.TarError) as e:
        answer = {"error": str(e)}
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")
    return 0


def unpacked(base: str, digest: str, sizes: "dict[str, int]", *, send: bool) -> bool:
    """Is the code there, whole? send: if not, it comes by stdin."""
    own_folder(base)
    code = f"{base}/code"
    own_folder(code)
    there = f"{code}/{digest}"
    if not _whole(there, sizes):
        if not send:
            return False
        _unpack(code, there, sizes)
    os.utime(there)
    with contextlib.suppress(OSError):
        prune(base, digest)
    return True


def _whole(folder: str, sizes: "dict[str, int]") -> bool:
    """Scratch file systems take away what nobody has read for a while, file by file."""
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
                    raise ValueError(f"{member.name!r} is no file of the code")
                source = tar.extractfile(member)
                os.makedirs(os.path.dirname(f"{new}/{member.name}"), 0o700, exist_ok=True)
                assert source is not None
                with open(f"{new}/{member.name}", "xb") as f:
                    shutil.copyfileobj(source, f)
        if not _whole(new, sizes):
            raise ValueError("not all of the code came")
        if _whole(there, sizes):  # somebody else was faster
            return
        if os.path.lexists(
            there
        ):  # damaged; what runs from it has it open, or will look for it in vain either way
            os.rename(there, f"{there}.{os.getpid()}-{time.time_ns()}.old")
        try:
            os.rename(new, there)
        except OSError:
            if not _whole(there, sizes):  # else somebody else was faster
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def prune(base: str, digest: str) -> None:
    """Take away code that nothing needs: neither an agent, nor a job of Slurm's that may still
    begin.
    """
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
    texts = _texts(base)
    for name in old:
        if not any(name.encode() in text for text in texts):
            shutil.rmtree(f"{code}/{name}", ignore_errors=True)


def _texts(base: str) -> "list[bytes]":
    """Everything that says what code is in use: of agents, and of jobs whose end is not known yet."""
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


def own_folder(path: str) -> None:
    """Make a folder (and those above it) that is this user's alone, or make sure that it is. Raises
    ValueError, OSError.
    """
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{path} is no folder")
    if status.st_uid != os.geteuid():
        raise ValueError(
            f"{path} belongs to {_name(status.st_uid)}: move it away, or choose another folder for this cluster"
        )
    if stat.S_IMODE(status.st_mode) != 0o700:
        os.chmod(path, 0o700)
    above = os.path.realpath(path)
    while above != "/":
        above = os.path.dirname(above)
        _trust(above)


def _trust(folder: str) -> None:
    """Who may write to a folder may put another one in the place of ours, unless it is sticky."""
    status = os.stat(folder)
    why = None
    if status.st_uid not in (0, os.geteuid()):
        why = f"belongs to {_name(status.st_uid)}"
    elif status.st_mode & stat.S_ISVTX:
        return
    elif status.st_mode & stat.S_IWOTH:
        why = "can be written to by everybody"
    elif status.st_mode & stat.S_IWGRP and not _private(status.st_gid):
        why = f"can be written to by a group (number {status.st_gid})"
    if why is not None:
        raise ValueError(
            f"{folder} {why}, who could put other code in the place of ours: choose another folder for this cluster"
        )


def _private(gid: int) -> bool:
    """Is it root's group, or this user's own, as many systems give one to each?"""
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
