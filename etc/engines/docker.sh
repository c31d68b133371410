#!/bin/bash
# A pool of Docker hosts on this machine, for the tests: two daemons from Debian's docker.io, each with its own files, TLS port on loopback
# and bridge. Images are built from Debian packages, so that nothing is pulled. Needs root.
#
#   docker.sh install             install docker.io, iptables, openssl if they are missing; then `image` and `wheels`
#   docker.sh check               check the requirements; installs nothing; 1 and a sentence if one is missing
#   docker.sh image               build the root file systems in CACHE, once (downloads from Debian's archive)
#   docker.sh wheels              download the packages of agent.lock for etc/docker/build.sh to CACHE, once, with the pip of PYTHON (python3)
#   docker.sh agent IMAGE         load the image with jobscribe's agent on all hosts; etc/docker/build.sh builds it from these packages and base:12, once for the same sources
#   docker.sh up                  start both daemons, with certificates, firewall rules and images (repeatable)
#   docker.sh down                remove all their containers and networks, stop the daemons, remove the rules
#   docker.sh clean               the same, and remove DIR
#   docker.sh status              a line for each host
#   docker.sh start|stop|restart|crash HOST    its daemon; crash: SIGKILL. Containers continue (live restore)
#   docker.sh freeze|thaw HOST    its daemon accepts connections and does not answer
#   docker.sh cut HOST [drop|reject]           block that daemon's port by a firewall rule; drop: packets vanish
#   docker.sh mend HOST           remove that rule
#   docker.sh well HOST           start, thaw and mend as needed
#   docker.sh env HOST            shell variables with which `docker` uses that host
#
# DIR      folder of all files (/var/tmp/jobscribe-docker); below it:
#          tls/HOST/{cacert,cert,key}.pem   in the layout of a pool's `tls` folder
#          bad/{expired,stranger,otherca}/  with an expired certificate, one of another authority, and the latter with its own cacert
# CACHE    folder of the images (/var/cache/jobscribe-docker)
# HOSTS    names of the hosts ("a b")       PORT  of the first host; the next ones follow (2476)
# SUBNETS  addresses of gang networks (10.208.0.0/12): the firewall isolates each network
# Two of these with different DIR and PORT do not interfere.
set -euo pipefail
DIR=${DIR:-/var/tmp/jobscribe-docker} CACHE=${CACHE:-/var/cache/jobscribe-docker} HOSTS=${HOSTS:-a b} PORT=${PORT:-2476}
SUBNETS=${SUBNETS:-10.208.0.0/12}
PYTHON=${PYTHON:-python3}
WAIT_SECS=60
self=$(dirname "$(readlink -f "$0")")
images="base:12 busybox:1 noshell:1"
debs="base-files libc6 libc-bin busybox-static tini ca-certificates python3-minimal python3.11-minimal libpython3.11-minimal
    libpython3.11-stdlib zlib1g libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libcrypt1 libgcc-s1"
sshd_debs="openssh-client openssh-server openssh-sftp-server libselinux1 libpcre2-8-0 libaudit1 libcap-ng0 libgssapi-krb5-2 libkrb5-3 libk5crypto3
    libkrb5support0 libcom-err2 libkeyutils1 libpam0g libsystemd0 libzstd1 liblz4-1 libgcrypt20 libgpg-error0 libcap2 libwrap0 libnsl2 libtirpc3
    libedit2 libtinfo6 libbsd0 libmd0 libfido2-1 libcbor0.8 libudev1"
chain=JOBSCRIBE-$PORT

fail() { echo "$*" >&2; exit 1; }

living() {  # is this process there, and more than a zombie?
    local state
    [[ ${1:-} ]] && read -r state 2>/dev/null <"/proc/$1/stat" && [[ ${state##*) } != Z* ]]
}

until_true() {  # until_true SECONDS COMMAND...
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || return 1
        sleep 0.05
    done
}

# ---- requirements

missing() {
    local command out=()
    for command in dockerd docker containerd iptables openssl; do command -v "$command" >/dev/null || out+=("$command"); done
    echo "${out[*]}"
}

check() {
    [[ $(id -u) == 0 ]] || fail "only root can start Docker daemons"
    [[ -z $(missing) ]] || fail "not installed: $(missing); run etc/engines/docker.sh install"
    iptables -w -n -L INPUT >/dev/null 2>&1 || fail "iptables does not work here (a container needs CAP_NET_ADMIN)"
    unshare --mount true 2>/dev/null || fail "mounts are not allowed here (a container needs CAP_SYS_ADMIN, without a seccomp or AppArmor profile that forbids it)"
    local name
    for name in $images sshd; do [[ -s $CACHE/${name%:*}.tar ]] || fail "the images are not built yet: run etc/engines/docker.sh install"; done
    [[ -e $CACHE/wheels/made ]] || fail "the packages of the agent's image are missing: run etc/engines/docker.sh install"
}

install() {
    [[ $(id -u) == 0 ]] || fail "only root can start Docker daemons"
    if [[ $(missing) ]]; then
        command -v apt-get >/dev/null || fail "not installed: $(missing); this is not Debian, so put it on the PATH"
        echo "installing the Debian packages docker.io, iptables, openssl (once)" >&2
        apt-get update -qq >&2 || echo "apt-get update failed; continuing with the package lists on this machine" >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io iptables openssl ca-certificates >&2 ||
            fail "the Debian packages docker.io, iptables and openssl could not be installed; see the output of apt-get above"
    fi
    image
    wheels
    check
    dockerd --version
}

# ---- images

image() {
    mkdir -p "$CACHE"
    exec 9>"$CACHE/lock"
    flock 9  # several may want it at once
    [[ -s $CACHE/base.tar && -s $CACHE/busybox.tar && -s $CACHE/noshell.tar ]] || make_images
    [[ -s $CACHE/sshd.tar ]] || make_sshd_image
    exec 9>&-
}

make_sshd_image() (  # base with OpenSSH; tests import it themselves
    work=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    chmod 755 "$work"
    mkdir -m 777 "$work/debs"
    mkdir "$work/sshd"
    tar -C "$work/sshd" -xf "$CACHE/base.tar"
    # shellcheck disable=SC2086
    (cd "$work/debs" && { apt-get download -qq $sshd_debs || { apt-get update -qq && apt-get download -qq $sshd_debs; }; }) >&2 ||
        fail "the packages of OpenSSH could not be fetched from Debian's archive; see the output of apt-get above"
    for d in "$work"/debs/*.deb; do dpkg-deb -x "$d" "$work/unpacked"; done
    for d in bin sbin lib lib64; do  # the base has links for these
        [[ ! -d $work/unpacked/$d ]] || { mkdir -p "$work/unpacked/usr/$d"; cp -a "$work/unpacked/$d/." "$work/unpacked/usr/$d/"; rm -r "$work/unpacked/$d"; }
    done
    cp -a "$work/unpacked/." "$work/sshd/"
    rm -rf "$work"/sshd/usr/share/{doc,man,locale,lintian}
    tar -C "$work/sshd" -cf "$CACHE/sshd.new" .
    mv "$CACHE/sshd.new" "$CACHE/sshd.tar"
)

make_images() {
    local work d
    work=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    chmod 755 "$work"
    mkdir -p "$work"/{debs,base/{tmp,proc,sys,dev,run,root,usr/{bin,sbin,lib,lib64}},busybox/{bin,tmp,etc},noshell}
    chmod 777 "$work/debs"  # apt fetches as a user of its own
    echo "fetching Debian packages for the tests' images (once)" >&2
    # shellcheck disable=SC2086
    (cd "$work/debs" && { apt-get download -qq $debs || { apt-get update -qq && apt-get download -qq $debs; }; }) >&2 ||
        fail "the packages for the tests' images could not be fetched from Debian's archive; see the output of apt-get above"
    for d in bin sbin lib lib64; do ln -s "usr/$d" "$work/base/$d"; done
    for d in "$work"/debs/*.deb; do dpkg-deb -x "$d" "$work/base"; done
    chroot "$work/base" /bin/busybox --install -s
    rm -rf "$work"/base/usr/share/{doc,man,locale,lintian}
    cat "$work"/base/usr/share/ca-certificates/mozilla/*.crt >"$work/base/etc/ssl/certs/ca-certificates.crt"
    cp "$work/base/bin/busybox" "$work/busybox/bin/busybox"
    for d in sh sleep cat echo env ls id kill; do ln -s busybox "$work/busybox/bin/$d"; done
    cp "$work/base/bin/busybox" "$work/noshell/sleep"  # under this name it is that and nothing else
    for d in base busybox; do
        chmod 1777 "$work/$d/tmp"
        printf '%s\n' root:x:0:0:root:/root:/bin/sh nobody:x:65534:65534:nobody:/:/bin/sh >"$work/$d/etc/passwd"
        printf '%s\n' root:x:0: nogroup:x:65534: >"$work/$d/etc/group"
    done
    for d in base busybox noshell; do
        tar -C "$work/$d" -cf "$CACHE/$d.new" .
        mv "$CACHE/$d.new" "$CACHE/$d.tar"
    done
    rm -rf "$work"
    trap - EXIT
}

wheels() {
    [[ ! -e $CACHE/wheels/made ]] || return 0
    local platforms=() minor
    for ((minor = 36; minor >= 17; minor--)); do platforms+=(--platform "manylinux_2_${minor}_$(uname -m)"); done
    mkdir -p "$CACHE/wheels"
    "$PYTHON" -m pip download --quiet --disable-pip-version-check --no-input --no-deps --only-binary :all: --dest "$CACHE/wheels" \
        --python-version 3.11 --implementation cp "${platforms[@]}" --platform "manylinux2014_$(uname -m)" \
        --require-hashes --requirement "$self/../requirements/agent.lock" >&2 ||
        fail "the packages of the agent's image could not be fetched; see the output of pip above"
    touch "$CACHE/wheels/made"
}

agent() {  # built once for all calls with the same sources: a test run has several pairs of hosts
    local image first=${HOSTS%% *} host built='' pid pids=() failed=0
    image=$CACHE/agent-$(agent_key "$1").tar
    exec 9>"$CACHE/agent.lock"
    flock 9
    if [[ ! -s $image ]]; then
        PIP_NO_INDEX=1 PIP_FIND_LINKS=$CACHE/wheels "$self/../docker/build.sh" --base jobscribe-test/base:12 --tag "$1" \
            --host "unix://$DIR/$first/sock" --python "$PYTHON"
        built=$first
        find "$CACHE" -name 'agent-*.tar' -printf '%T@ %p\n' | sort -rn | sed -e '1,2d' -e 's/[^ ]* //' | xargs -r rm -f
        docker_of "$first" save --output "$image.new" "$1"
        mv "$image.new" "$image"
    fi
    touch "$image"
    exec 9>&-
    for host in $HOSTS; do
        [[ $host != "$built" ]] || continue
        docker_of "$host" load --quiet --input "$image" >/dev/null &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    return "$failed"
}

agent_key() {  # of everything that build.sh copies, and of its base
    local root
    root=$(readlink -f "$self/../..")
    (cd "$root" && { find __init__.py agent apps protocol runtime etc/docker etc/requirements/agent.lock -type f ! -path '*/__pycache__/*' -print0 |
        LC_ALL=C sort -z | xargs -0 sha256sum; stat -c '%s %Y' "$CACHE/base.tar"; echo "$1"; }) | sha256sum | sed 's/ .*//'
}

import() {  # into the daemon of host $1, what it does not have
    local name
    for name in $images; do
        [[ -n $(docker_of "$1" images -q "jobscribe-test/$name") ]] || docker_of "$1" import "$CACHE/${name%:*}.tar" "jobscribe-test/$name" >/dev/null
    done
}

# ---- certificates: an authority, a pair for each daemon and its client, and invalid ones

authority() {  # in folder $1
    mkdir -p "$1"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj "/CN=$2" -keyout "$1/ca-key.pem" -out "$1/ca.pem" \
        -addext "keyUsage=critical,keyCertSign,cRLSign" 2>/dev/null
}

pair() {  # in folder $1, for $2, of the authority in $3, for serverAuth or clientAuth ($4), for so many days ($5)
    mkdir -p "$1"
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$1/key.pem" -subj "/CN=$2" -out "$1/csr.pem" 2>/dev/null
    printf '%s\n' "basicConstraints=CA:FALSE" "keyUsage=critical,digitalSignature" "extendedKeyUsage=$4" "subjectKeyIdentifier=hash" \
        "authorityKeyIdentifier=keyid" "subjectAltName=DNS:$2,DNS:localhost,IP:127.0.0.1" >"$1/extensions"
    openssl x509 -req -in "$1/csr.pem" -CA "$3/ca.pem" -CAkey "$3/ca-key.pem" -CAcreateserial -days "$5" -extfile "$1/extensions" -out "$1/cert.pem" 2>/dev/null
    cp "$3/ca.pem" "$1/cacert.pem"
    rm "$1/csr.pem" "$1/extensions"
}

certificates() {
    [[ ! -e $DIR/tls/made ]] || return 0
    local host
    umask 077
    mkdir -p "$DIR/tls"
    authority "$DIR/ca" "jobscribe test authority"
    authority "$DIR/ca-other" "another authority"
    for host in $HOSTS; do
        pair "$DIR/server/$host" "$host" "$DIR/ca" serverAuth 30
        pair "$DIR/tls/$host" supervisor "$DIR/ca" clientAuth 30
        ln -s cacert.pem "$DIR/tls/$host/ca.pem"  # as the docker command calls it
    done
    pair "$DIR/bad/expired" supervisor "$DIR/ca" clientAuth -1
    pair "$DIR/bad/stranger" supervisor "$DIR/ca-other" clientAuth 30
    cp -r "$DIR/bad/stranger" "$DIR/bad/otherca"
    cp "$DIR/ca/ca.pem" "$DIR/bad/stranger/cacert.pem"
    umask 022
    touch "$DIR/tls/made"
}

# ---- hosts

port_of() {
    local n=0 host
    for host in $HOSTS; do
        [[ $host != "$1" ]] || { echo $((PORT + n)); return; }
        n=$((n + 1))
    done
    fail "there is no host $1; the hosts are: $HOSTS"
}

bridge_of() { echo "jsd$(port_of "$1")"; }
docker_of() { docker -H "unix://$DIR/$1/sock" "${@:2}"; }
pid_of() { cat "$DIR/$1/pid" 2>/dev/null || true; }

start() {
    local host=$1 port bridge started
    port=$(port_of "$host") bridge=$(bridge_of "$host")
    mkdir -p "$DIR/$host"
    if ! ip link show "$bridge" >/dev/null 2>&1; then
        ip link add "$bridge" type bridge
        ip address add "10.$((200 + port / 256 % 8)).$((port % 256)).1/24" dev "$bridge"
        ip link set "$bridge" up
    fi
    if ! living "$(pid_of "$host")"; then
        rm -f "$DIR/$host/pid"
        echo '{}' >"$DIR/$host/none.json"  # instead of the configuration of this machine's own daemon
        # a garbage collector that runs less often takes a fifth of the time of daemons and of the programs that each container starts
        GOGC=400 setsid dockerd --data-root "$DIR/$host/data" --exec-root "$DIR/$host/run" --pidfile "$DIR/$host/pid" --config-file "$DIR/$host/none.json" \
            -H "unix://$DIR/$host/sock" -H "tcp://127.0.0.1:$port" --tlsverify --tlscacert "$DIR/server/$host/cacert.pem" \
            --tlscert "$DIR/server/$host/cert.pem" --tlskey "$DIR/server/$host/key.pem" --bridge "$bridge" --live-restore \
            --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --userland-proxy=false --label "jobscribe.host=$host" --log-level warn \
            >>"$DIR/$host/log" 2>&1 </dev/null &
        started=$!
    else
        started=$(pid_of "$host")
    fi
    until_true "$WAIT_SECS" answers_or_dead "$host" "$started" || true
    docker_of "$host" ps -q >/dev/null 2>&1 || { tail "$DIR/$host/log" >&2; fail "the daemon of host $host does not start"; }
}

stop() {
    local pid
    pid=$(pid_of "$1")
    living "$pid" || return 0
    kill -CONT "$pid"
    kill "$pid"
    until_true "$WAIT_SECS" dead "$pid" || fail "the daemon of host $1 (pid $pid) does not stop"
}

dead() { ! living "$1"; }
answers_or_dead() {  # its socket is there early and answers when it is ready. `info` would execute three programs
    if [[ -S $DIR/$1/sock ]] && docker_of "$1" ps -q; then return; fi
    dead "$2"
}
reaped() { [[ ! -e /proc/$1 ]]; }

crash() {  # a new one waits for the old one's containerd, which dies with it, and gives up when that is not reaped soon
    local pid children child
    pid=$(pid_of "$1")
    children=$(pgrep -P "$pid" -x containerd || true)
    kill -KILL "$pid"
    for child in $pid $children; do until_true "$WAIT_SECS" reaped "$child" || fail "process $child does not end"; done
    rm -f "$DIR/$1/pid"
}

well() {
    if living "$(pid_of "$1")"; then thaw "$1"; fi
    mend "$1"
    start "$1"
}

restart() { stop "$1"; start "$1"; }
freeze() { kill -STOP "$(pid_of "$1")"; }
thaw() { kill -CONT "$(pid_of "$1")"; }

# ---- the firewall. docs/docker.md, "Networks and firewall", has the same for a real host

rules() {
    # jumps are added last, when their target chains are complete
    iptables -w -C INPUT -j "$chain" 2>/dev/null && iptables -w -C FORWARD -j "$chain-F" 2>/dev/null && return
    no_rules
    iptables -w -N "$chain"
    iptables -w -N "$chain-F"
    # a gang may only communicate within its bridge: not with this machine's addresses or other networks
    iptables -w -A "$chain" -s "$SUBNETS" ! -i lo -j DROP
    iptables -w -A "$chain-F" -s "$SUBNETS" -m physdev --physdev-is-bridged -j ACCEPT
    iptables -w -A "$chain-F" -s "$SUBNETS" -j DROP
    iptables -w -A "$chain-F" -d "$SUBNETS" -j DROP
    local host
    for host in $HOSTS; do  # nothing that tests run gets out of this machine
        iptables -w -A "$chain-F" -i "$(bridge_of "$host")" ! -o "$(bridge_of "$host")" -j REJECT
        iptables -w -A "$chain-F" -i "$(bridge_of "$host")" -o "$(bridge_of "$host")" -j ACCEPT
    done
    iptables -w -I INPUT -j "$chain"
    iptables -w -I FORWARD -j "$chain-F"
}

no_rules() {
    iptables -w -D INPUT -j "$chain" 2>/dev/null || true
    iptables -w -D FORWARD -j "$chain-F" 2>/dev/null || true
    local name
    for name in "$chain" "$chain-F"; do
        iptables -w -F "$name" 2>/dev/null || true
        iptables -w -X "$name" 2>/dev/null || true
    done
}

cut() {
    local port way
    port=$(port_of "$1")
    mend "$1"
    case ${2:-drop} in
        drop) way="DROP" ;;
        reject) way="REJECT --reject-with tcp-reset" ;;
        *) fail "cut HOST [drop|reject]" ;;
    esac
    # shellcheck disable=SC2086
    iptables -w -I "$chain" -p tcp --dport "$port" -m comment --comment "cut $port" -j $way
    # the answers to refused packets come from that port and must pass
    [[ $way != DROP ]] || iptables -w -I "$chain" -p tcp --sport "$port" -m comment --comment "cut $port" -j DROP
}

mend() {
    local port number
    port=$(port_of "$1")
    while number=$(iptables -w -n --line-numbers -L "$chain" | awk -v c="cut $port " 'index($0, "/* " c) {print $1; exit}') && [[ $number ]]; do
        iptables -w -D "$chain" "$number"
    done
}

# ---- everything

up() {
    check
    mkdir -p "$DIR"
    chmod 755 "$DIR"
    certificates
    rules
    each_host up_one
    status
}

each_host() {  # function $1 for all of them, at once
    local host pid pids=() failed=0
    for host in $HOSTS; do
        "$1" "$host" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    return "$failed"
}

up_one() { start "$1"; import "$1"; }

down() {
    each_host down_one
    no_rules
}

down_one() {
    local host=$1 containers shim
    [[ -d $DIR/$host/data ]] || return 0
    well "$host"  # a dead daemon's containers may live: only it can end them
    containers=$(docker_of "$host" ps -aq)
    # shellcheck disable=SC2086
    [[ -z $containers ]] || docker_of "$host" rm -f $containers >/dev/null
    docker_of "$host" network prune -f >/dev/null
    stop "$host"
    for shim in $(pgrep -f "containerd-shim.* -address $DIR/$host/run/" || true); do  # of a start that a crash cut in two: no daemon knows of it
        # shellcheck disable=SC2046
        kill -KILL $(pgrep -P "$shim" || true) "$shim" 2>/dev/null || true
    done
    ip link delete "$(bridge_of "$host")" 2>/dev/null || true
}

clean() {
    down
    awk -v d="$DIR/" 'index($2, d) == 1 {print $2}' /proc/mounts | sort -r | xargs -r umount -l
    rm -rf "$DIR"
}

status() {
    local host
    for host in $HOSTS; do
        docker_of "$host" info -f "$host tcp://127.0.0.1:$(port_of "$host") {{.ServerVersion}} {{.Driver}} containers={{.Containers}} images={{.Images}}" \
            2>/dev/null || echo "$host down"
    done
}

env() { echo "export DOCKER_HOST=tcp://127.0.0.1:$(port_of "$1") DOCKER_TLS_VERIFY=1 DOCKER_CERT_PATH=$DIR/tls/$1"; }

case ${1:-} in
    agent) agent "${2:-jobscribe-test/agent:1}" ;;
    install | check | image | wheels | up | down | clean | status) "$1" ;;
    start | stop | restart | crash | freeze | thaw | mend | well | env)
        [[ ${2:-} ]] || fail "docker.sh $1 HOST"
        port_of "$2" >/dev/null
        "$1" "$2"
        ;;
    cut) cut "${2:-}" "${3:-drop}" ;;
    *) fail "docker.sh install | check | image | wheels | agent IMAGE | up | down | clean | status, or start | stop | restart | crash | freeze | thaw | cut | mend | well | env HOST" ;;
esac
