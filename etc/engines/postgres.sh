#!/bin/bash
# A PostgreSQL server on a Unix socket: Debian's postgresql-15, with its own data and no service.
#
#   postgres.sh install    install Debian's package if the server is missing
#   postgres.sh where      the folder of the server's programs; 1 and a sentence if it is missing
#   postgres.sh start DIR [SETTING...]   make a cluster in DIR if there is none, and start it; prints its URL
#   postgres.sh stop DIR   stop it at once, and keep its data
#   postgres.sh replica DIR OF [SETTING...]   copy the running server of the folder OF to DIR, and start a
#                          server there that follows it as a streaming replica; prints its URL
#   postgres.sh promote DIR   make the replica in DIR a server of its own, when the one that it follows is gone
#
# SETTING  as in postgresql.conf, for example max_connections=5. Root runs the server as the unix user
# `postgres`. The superuser of the database is the unix user who calls this.
set -euo pipefail

fail() { echo "$*" >&2; exit 1; }

where() {
    local program folder
    program=$(command -v postgres || true)
    if [[ $program ]]; then folder=$(dirname "$(readlink -f "$program")"); else folder=/usr/lib/postgresql/15/bin; fi
    for program in postgres initdb pg_ctl; do
        [[ -x $folder/$program ]] || fail "PostgreSQL's $program is missing: run etc/engines/postgres.sh install"
    done
    [[ $(id -u) != 0 ]] || id postgres >/dev/null 2>&1 || fail "there is no unix user postgres: PostgreSQL does not run as root"
    echo "$folder"
}

install() {
    if (where) >/dev/null 2>&1; then return; fi
    command -v apt-get >/dev/null || fail "PostgreSQL is not installed, and this is not Debian: put postgres on the PATH"
    [[ $(id -u) == 0 ]] || fail "PostgreSQL is not installed, and only root can install it: sudo apt-get install postgresql-15"
    echo "installing the Debian package postgresql-15 (once)" >&2
    apt-get update -qq >&2 || echo "apt-get update failed; continuing with the package lists on this machine" >&2
    # the package would make a cluster and start it
    mkdir -p /etc/postgresql-common
    [[ -e /etc/postgresql-common/createcluster.conf ]] || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql-15 >&2 ||
        fail "the Debian package postgresql-15 could not be installed; see the output of apt-get above"
    where >/dev/null
}

# Runs a program as the server's unix user.
server() {
    if [[ $(id -u) == 0 ]]; then setpriv --reuid postgres --regid postgres --clear-groups env HOME=/tmp "$@"; else "$@"; fi
}

start() {
    local folder=$1 bin settings="" setting
    shift
    bin=$(where) || exit 1
    mkdir -p "$folder"
    if [[ $(id -u) == 0 ]]; then
        chown postgres "$folder"
        chmod 755 "$folder"
    fi
    if [[ ! -e $folder/data/PG_VERSION ]]; then
        # a cluster of tests: its files need no sync to be complete when initdb ends
        (cd "$folder" && server "$bin/initdb" -D "$folder/data" -U "$(id -un)" -A trust -E UTF8 --locale C --no-sync >"$folder/initdb.log" 2>&1) ||
            { cat "$folder/initdb.log" >&2; fail "initdb failed"; }
    fi
    for setting in "$@"; do settings+=" -c $setting"; done
    (cd "$folder" && server "$bin/pg_ctl" -D "$folder/data" -l "$folder/log" -w -t 60 \
        -o "-c listen_addresses='' -c unix_socket_directories='$folder' -c autovacuum=off -c shared_buffers=16MB$settings" \
        start </dev/null >/dev/null 2>"$folder/start.log") || { tail -5 "$folder/log" "$folder/start.log" >&2; fail "PostgreSQL does not start in $folder"; }
    echo "postgresql://$(id -un)@/postgres?host=$folder"
}

replica() {
    local folder=$1 of=$2 bin
    shift 2
    bin=$(where) || exit 1
    mkdir -p "$folder"
    [[ $(id -u) != 0 ]] || { chown postgres "$folder"; chmod 755 "$folder"; }
    (cd "$folder" && server "$bin/pg_basebackup" -d "host=$of user=$(id -un) application_name=replica" -D "$folder/data" \
        --write-recovery-conf --wal-method=stream --checkpoint=fast --no-sync >"$folder/initdb.log" 2>&1) ||
        { cat "$folder/initdb.log" >&2; fail "pg_basebackup of $of failed"; }
    start "$folder" "$@"
}

promote() {
    local bin
    bin=$(where) || exit 1
    (cd "$1" && server "$bin/pg_ctl" -D "$1/data" -w -t 60 promote >/dev/null)
}

stop() {
    local bin
    bin=$(where) || exit 1
    [[ -e $1/data/postmaster.pid ]] || return 0
    (cd "$1" && server "$bin/pg_ctl" -D "$1/data" -m immediate -w -t 30 stop >/dev/null)
}

case ${1:-} in
    install | where) "$1" ;;
    start | stop | promote)
        (($# >= 2)) || fail "postgres.sh $1 DIR"
        "$@"
        ;;
    replica)
        (($# >= 3)) || fail "postgres.sh replica DIR OF"
        "$@"
        ;;
    *) fail "postgres.sh install | where | start DIR [SETTING...] | stop DIR | replica DIR OF [SETTING...] | promote DIR" ;;
esac
