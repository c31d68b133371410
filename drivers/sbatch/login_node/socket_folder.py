"""Where the socket of a link through ssh lies on a login node: in a folder of its own on that
machine's own disk.

A unix socket's path may have 107 bytes, and scratch folders are often deeper than that; some file
systems of the network have no sockets at all. The folder's name is made up there each time and made
exclusively, so nobody can be there before; it is the user's alone.
"""

from ....protocol.errors import Refusal
from .channel import Channel

#: Stands before the path: what a login prints is none.
_MARK = "@@jobscribe@@ "
#: `$1/link` leads to the folder, so that the next one is made in its place. Only where names cannot
#: be taken from their owners (sticky).
_MAKE = f"""umask 077
mkdir -p -- "$1" && [ -d "$1" ] && [ -O "$1" ] || {{ echo "$1 is not a folder of your own" >&2; exit 1; }}
old=$(readlink -- "$1/link" 2>/dev/null)
new=
for t in /tmp /var/tmp /dev/shm; do
  [ -k "$t" ] && new=$(mktemp -d "$t/jobscribe-link.XXXXXXXXXX" 2>/dev/null) && break
done
[ "$new" ] || {{ echo "no folder for a socket can be made in /tmp, /var/tmp or /dev/shm" >&2; exit 1; }}
case $old in
  /tmp/jobscribe-link.*|/var/tmp/jobscribe-link.*|/dev/shm/jobscribe-link.*) rm -f -- "$old/s"; rmdir -- "$old" 2>/dev/null ;;
esac
rm -f -- "$1/link" && ln -s -- "$new" "$1/link" || {{ rmdir -- "$new"; echo "$1 cannot be written to" >&2; exit 1; }}
printf '\\n%s%s\\n' '{_MARK}' "$new"
"""
_AWAY = 'rm -f -- "$(readlink -- "$1/link")/s"; rmdir -- "$(readlink -- "$1/link")" && rm -f -- "$1/link"; rmdir -- "$1"'


async def socket_path(channel: Channel, folder: str, secs: float) -> str:
    """A path for a socket that is asked for from this folder there; that of the time before is
    taken away.

    Raises Refusal("agentUnavailable"), ChannelError.
    """
    ran = await channel.run(["/bin/sh", "-c", _MAKE, "sh", folder], secs=secs)
    _, mark, said = ran.out.decode("utf-8", "replace").rpartition(_MARK)
    if ran.code != 0 or not mark:
        lines = [
            line.strip() for line in ran.err.decode("utf-8", "replace").splitlines() if line.strip()
        ]
        why = lines[-1][:300] if lines else f"exit code {ran.code}"
        raise Refusal("agentUnavailable", f"no socket can be made on {channel.host}: {why}")
    return f"{said.splitlines()[0]}/s"


async def take_away(channel: Channel, folder: str, secs: float) -> None:
    await channel.run(["/bin/sh", "-c", _AWAY, "sh", folder], secs=secs)
