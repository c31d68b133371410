#!/bin/bash
# A journal where there is none: systemd-journald by hand, for machines without systemd as process 1 (Docker's log driver `journald` writes
# into the machine's own journal, and nowhere else). One that is there is used as it is, and never touched. Needs root.
#
#   journald.sh install   Debian's package systemd (which is not started), where it is missing
#   journald.sh up        start one, unless there is one; prints whose it is
#   journald.sh down      end the one that `up` started, with all that it has
#   journald.sh status    1 where there is no journal
#
# DIR   where it is noted that we started it (/var/tmp/jobscribe-journal)
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
# a file alone may be what somebody left behind; the kernel knows who listens
there() { awk -v s="$socket" '$NF == s {found = 1} END {exit !found}' /proc/net/unix; }

install() {
    [[ ! -x $daemon ]] || return 0
    command -v apt-get >/dev/null || fail "systemd-journald is not here, and this is not Debian: there is no $daemon"
    [[ $(id -u) == 0 ]] || fail "systemd-journald is not here, and only root can install it: sudo apt-get install systemd"
    echo "installing the Debian package systemd (once)" >&2
    apt-get update -qq >&2 || echo "the lists of packages could not be brought up to date; trying with those that are here" >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends systemd >&2 ||
        fail "the Debian package systemd could not be installed; what apt-get said is above"
}

up() {
    if ! there; then
        [[ $(id -u) == 0 ]] || fail "there is no journal here, and only root can start one"
        [[ -x $daemon ]] || fail "there is no $daemon here: etc/engines/journald.sh install"
        mkdir -p "$DIR" /run/systemd/journal "${config%/*}"
        # members of the group may read what is written; without systemd nobody else has made the folder so
        command install -d -m 2755 -g "$(getent group systemd-journal >/dev/null && echo systemd-journal || echo root)" /run/log/journal
        [[ -s /etc/machine-id ]] || systemd-machine-id-setup >&2
        printf '%s\n' '[Journal]' Storage=volatile RuntimeMaxUse=128M RateLimitBurst=0 ReadKMsg=no Audit=no >"$config"
        setsid "$daemon" >"$DIR/log" 2>&1 </dev/null &
        echo $! >"$DIR/pid"
        local deadline=$((SECONDS + 20))
        until there; do
            ours || { tail "$DIR/log" >&2; fail "the journal does not come up"; }
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
    while living "$pid"; do ((SECONDS < deadline)) || fail "the journal (pid $pid) does not end"; sleep 0.05; done
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
