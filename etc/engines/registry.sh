#!/bin/bash
# An image registry on loopback: Debian's docker-registry, with a user name and password.
#
#   registry.sh install   install Debian's package docker-registry if it is missing
#   registry.sh up        start it (repeatable); prints its address
#   registry.sh stop      stop it, and keep its data
#   registry.sh down      stop it, and remove its files
#   registry.sh status    its address; 1 if it does not run
#
# DIR   folder of its files (/var/tmp/jobscribe-registry); the user name is `puller`, the password is in DIR/password    PORT  (5476)
set -euo pipefail
DIR=${DIR:-/var/tmp/jobscribe-registry} PORT=${PORT:-5476}

fail() { echo "$*" >&2; exit 1; }

living() {
    local state
    [[ ${1:-} ]] && read -r state 2>/dev/null <"/proc/$1/stat" && [[ ${state##*) } != Z* ]]
}

first() { cat "$DIR/pid" 2>/dev/null || true; }
answers() { (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; }

install() {
    command -v docker-registry >/dev/null && return
    command -v apt-get >/dev/null || fail "docker-registry is not installed, and this is not Debian: put it on the PATH"
    [[ $(id -u) == 0 ]] || fail "docker-registry is not installed, and only root can install it: sudo apt-get install docker-registry"
    echo "installing the Debian package docker-registry (once)" >&2
    apt-get update -qq >&2 || echo "apt-get update failed; continuing with the package lists on this machine" >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker-registry >&2 ||
        fail "the Debian package docker-registry could not be installed; see the output of apt-get above"
}

configuration() {
    umask 077
    mkdir -p "$DIR/data"
    [[ -s $DIR/password ]] || openssl rand -hex 16 >"$DIR/password"
    # bcrypt by the C library, so that no Apache tool is needed; the password is on no command line
    perl -e 'chomp(my $word = <STDIN>); my @c = ("a".."z"); print "puller:", crypt($word, q($2y$05$) . join("", map { $c[rand @c] } 1..22)), "\n"' \
        <"$DIR/password" >"$DIR/htpasswd"
    printf '%s\n' "version: 0.1" "log: {level: warn}" "storage: {filesystem: {rootdirectory: $DIR/data}, delete: {enabled: true}}" \
        "http: {addr: '127.0.0.1:$PORT'}" "auth: {htpasswd: {realm: tests, path: $DIR/htpasswd}}" >"$DIR/config.yml"
}

up() {
    command -v docker-registry >/dev/null || fail "docker-registry is not installed: run etc/engines/registry.sh install"
    if ! living "$(first)"; then
        answers && fail "another process listens on port $PORT: set another PORT"
        configuration
        setsid docker-registry serve "$DIR/config.yml" >>"$DIR/log" 2>&1 </dev/null &
        echo $! >"$DIR/pid"
    fi
    local deadline=$((SECONDS + 20))
    until answers; do
        living "$(first)" || { tail "$DIR/log" >&2; fail "the registry does not start"; }
        ((SECONDS < deadline)) || fail "the registry does not answer"
        sleep 0.05
    done
    status
}

stop() {
    local pid deadline=$((SECONDS + 20))
    pid=$(first)
    if living "$pid"; then kill "$pid"; fi
    while living "$pid"; do ((SECONDS < deadline)) || fail "the registry (pid $pid) does not stop"; sleep 0.05; done
    rm -f "$DIR/pid"
}

down() { stop; rm -rf "$DIR"; }
status() { living "$(first)" && answers && echo "127.0.0.1:$PORT"; }

case ${1:-} in
    install | up | stop | down | status) "$1" ;;
    *) fail "registry.sh install | up | stop | down | status" ;;
esac
