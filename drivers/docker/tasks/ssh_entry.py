"""The command that answers one ssh connection of a user in a task's container. Pure.

An sshd of the image speaks over the command's standard input and output, so nothing listens. It
accepts one key: that of the user, which is the first line of the input. The keys of the gang are
not accepted, and the user's key opens no other sshd. The first line of output has the key of the
host, which the user checks then.
"""

from ..containers.ssh_files import HOST_KEY, MOUNTED, SSHD_CONFIG
from .init_script import SSHD_LOG, SSHD_PATHS

_SCRIPT = r"""
config=$1 host_key=$2 log=$3; shift 3
if [ ! -r "$config" ]; then
  echo "the task was started without ssh" >&2; exit 69
fi
sshd=
for p in "$(command -v sshd)" "$@"; do [ -x "$p" ] && { sshd=$p; break; }; done
if [ -z "$sshd" ]; then
  echo "its image has no sshd; use an image with OpenSSH (Debian: openssh-server)" >&2; exit 69
fi
IFS= read -r key || exit 65
case $key in
  "ssh-ed25519 "*) ;;
  *) echo "the first line is no public key of type ssh-ed25519" >&2; exit 65 ;;
esac
keys=/tmp/.jobscribe-ssh-$$
rm -f "$keys"
if ! (umask 077; set -C; printf '%s\n' "$key" >"$keys"); then
  echo "/tmp of the task is not writable or full" >&2; exit 73
fi
# the end of the connection may be a signal; the file goes with it
trap : HUP TERM PIPE
IFS= read -r host <"$host_key"
printf 'jobscribe-ssh %s\n' "$host"
"$sshd" -i -e -f "$config" -o AuthorizedKeysFile="$keys" 2>>"$log"
code=$?
rm -f "$keys"
exit "$code"
"""


def ssh_command(evidence: str) -> list[str]:
    """Return the command. evidence: the folder of the execution, where errors of sshd go."""
    files = (f"{MOUNTED}/{SSHD_CONFIG}", f"{MOUNTED}/{HOST_KEY}.pub", f"{evidence}/{SSHD_LOG}")
    return ["/bin/sh", "-c", _SCRIPT, "sh", *files, *SSHD_PATHS]
