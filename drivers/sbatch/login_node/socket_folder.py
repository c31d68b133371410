"""Folder for the socket of an ssh link on a login node, on that machine's own disk.

A unix socket's path is limited to 107 bytes, and scratch folders are often longer; some network
file systems do not support sockets. The folder gets a random name each time and is created
exclusively with mode 0700.
"""

from ....protocol.errors import Refusal
from .channel import Channel

#: Marks the path in the output, because a login may print other text.
_MARK = "@@jobscribe@@ "
#: `$1/link` points to the folder, so that the next call replaces it. Only parent folders with the
#: sticky bit are used: there, other users cannot rename or delete the folder.
_MAKE = f"""umask 077
mkdir -p -- "$1" && [ -d "$1" ] && [ -O "$1" ] || {{ echo "$1 is not a folder of your own" >&2; exit 1; }}
old=$(readlink -- "$1/link" 2>/dev/null)
new=
for t in /tmp /var/tmp /dev/shm; do
  [ -k "$t" ] && new=$(mktemp -d "$t/jobscribe-link.XXXXXXXXXX" 2>/dev/null) && break
done
[ "$new" ] || {{ echo "cannot create a folder for a socket in /tmp, /var/tmp or /dev/shm" >&2; exit 1; }}
case $old in
  /tmp/jobscribe-link.*|/var/tmp/jobscribe-link.*|/dev/shm/jobscribe-link.*) rm -f -- "$old/s"; rmdir -- "$old" 2>/dev/null ;;
esac
rm -f -- "$1/link" && ln -s -- "$new" "$1/link" || {{ rmdir -- "$new"; echo "cannot write to $1" >&2; exit 1; }}
printf '\\n%s%s\\n' '{_MARK}' "$new"
"""
_REMOVE = 'rm -f -- "$(readlink -- "$1/link")/s"; rmdir -- "$(readlink -- "$1/link")" && rm -f -- "$1/link"; rmdir -- "$1"'


async def socket_path(channel: Channel, folder: str, secs: float) -> str:
    """Create a socket folder for this agent folder and return the socket's path. The previous
    socket folder is deleted.

    Raises Refusal("agentUnavailable"), ChannelError.
    """
    result = await channel.run(["/bin/sh", "-c", _MAKE, "sh", folder], secs=secs)
    _, mark, path = result.out.decode("utf-8", "replace").rpartition(_MARK)
    if result.code != 0 or not mark:
        lines = [
            line.strip()
            for line in result.err.decode("utf-8", "replace").splitlines()
            if line.strip()
        ]
        why = lines[-1][:300] if lines else f"exit code {result.code}"
        raise Refusal("agentUnavailable", f"cannot create a socket on {channel.host}: {why}")
    return f"{path.splitlines()[0]}/s"


async def remove_socket(channel: Channel, folder: str, secs: float) -> None:
    await channel.run(["/bin/sh", "-c", _REMOVE, "sh", folder], secs=secs)
