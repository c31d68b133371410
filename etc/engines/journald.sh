#!/bin/bash
# Starts systemd-journald on machines without systemd as process 1, because Docker's log driver `journald` writes only to the machine's
# journal. An existing journal is used and never changed. Needs root.
#
#   journald.sh install   installs Debian's package systemd if it is missing; does not start it
#   journald.sh up        start a journal unless one runs; prints who started it
#   journald.sh down      stop the journal that `up` started, and remove its files
#   journald.sh status    exit status 1 if there is no journal
#
# DIR   folder with the pid of the journal that this script started (/var/tmp/jobscribe-journal)
set -euo pipefail
DIR=${DIR:-/var/tmp/jobscribe-journal}
daemon=/lib/systemd/systemd-journald
socket=/run/systemd/journal/socket
config=/run/systemd/journald.conf.d/jobscribe-test.conf

fail() { echo "$*" >&2; exit 1; }

living() {
    local state
    [[ ${1:-} ]] && read -r state 2>/dev/null <"/proc/$1/stat" && [[ ${state##*) } != Z* ]]
}

ours() { [[ -s $DIR/pid ]] && living "$(cat "$DIR/pid")"; }
# the socket file may be stale, so ask the kernel for a listener
there() { awk -v s="$socket" '$NF == s {found = 1} END {exit !found}' /proc/net/unix; }

install() {
    [[ ! -x $daemon ]] || return 0
    command -v apt-get >/dev/null || fail "systemd-journald is not installed, and this is not Debian: $daemon is missing"
    [[ $(id -u) == 0 ]] || fail "systemd-journald is not installed, and only root can install it: sudo apt-get install systemd"
    echo "installing the Debian package systemd (once)" >&2
    apt-get update -qq >&2 || echo "apt-get update failed; continuing with the package lists on this machine" >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends systemd >&2 ||
        fail "the Debian package systemd could not be installed; see the output of apt-get above"
}

up() {
    if ! there; then
        [[ $(id -u) == 0 ]] || fail "no journal runs here, and only root can start one"
        [[ -x $daemon ]] || fail "$daemon is missing: run etc/engines/journald.sh install"
        mkdir -p "$DIR" /run/systemd/journal "${config%/*}"
        # members of the group may read the journal; without systemd this script must set the permissions
        command install -d -m 2755 -g "$(getent group systemd-journal >/dev/null && echo systemd-journal || echo root)" /run/log/journal
        [[ -s /etc/machine-id ]] || systemd-machine-id-setup >&2
        printf '%s\n' '[Journal]' Storage=volatile RuntimeMaxUse=128M RateLimitBurst=0 ReadKMsg=no Audit=no >"$config"
        setsid "$daemon" >"$DIR/log" 2>&1 </dev/null &
        echo $! >"$DIR/pid"
        local deadline=$((SECONDS + 20))
        until there; do
            ours || { tail "$DIR/log" >&2; fail "the journal does not start"; }
            ((SECONDS < deadline)) || fail "the journal does not listen"
            sleep 0.05
        done
    fi
    status
}

down() {
    local pid deadline=$((SECONDS + 20))
    ours || { rm -rf "$DIR"; return 0; }
    pid=$(cat "$DIR/pid")
    kill "$pid"
    while living "$pid"; do ((SECONDS < deadline)) || fail "the journal (pid $pid) does not stop"; sleep 0.05; done
    rm -f "$config" /run/systemd/journal/{socket,stdout,dev-log,io.systemd.journal}
    rm -rf "$DIR"
}

status() {
    if ours; then
        echo "ours, pid $(cat "$DIR/pid")"
    elif there; then
        echo "somebody else's, left as it is"
    else
        return 1
    fi
}

case ${1:-} in
    install | up | down | status) "$1" ;;
    *) fail "journald.sh install | up | down | status" ;;
esac
