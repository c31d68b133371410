#!/bin/bash
# A real systemd as process 1 of a separate machine, made of namespaces and a temporary overlay of this machine's files. It needs no image,
# starts in a second, and leaves nothing behind after `down`. Needs root and the right to create namespaces.
#
#   systemd.sh up NAME             start it (repeatable); prints the outer pid of its process 1
#   systemd.sh exec NAME COMMAND   run a command in it as root
#   systemd.sh status NAME         its pid and state; 1 if it does not run
#   systemd.sh down NAME           stop it with all its processes, and remove its files
#   systemd.sh check               check the requirements; installs Debian's `systemd` if it is missing; 1 and a sentence if one fails
#
# DIR   folder of running machines (/var/tmp/jobscribe-systemd)
# BIND  paths to bind-mount read-only: needed for files in /tmp or on a file system other than /
# NET   own: loopback only (the default); host: this machine's network
# CGROUP  2: only cgroup v2 in the machine. Otherwise the same as outside.
# `systemctl reboot` works in the machine and keeps its files. Each boot has its own boot id.
set -euo pipefail
DIR=${DIR:-/var/tmp/jobscribe-systemd} BIND=${BIND:-} NET=${NET:-own} CGROUP=${CGROUP:-}
init=/lib/systemd/systemd
self=$(readlink -f "$0")

fail() { echo "$*" >&2; exit 1; }

living() {  # is this process there, and more than a zombie?
    local state
    [[ ${1:-} ]] && read -r state 2>/dev/null <"/proc/$1/stat" && [[ ${state##*) } != Z* ]]
}

first() { [[ -s $DIR/$1/pid ]] && cat "$DIR/$1/pid"; }

check() {
    [[ $(id -u) == 0 ]] || fail "only root can start a systemd machine"
    if [[ ! -x $init ]]; then
        command -v apt-get >/dev/null || fail "systemd is not installed, and this is not Debian: $init is missing"
        echo "installing the Debian package systemd (once)" >&2
        apt-get update -qq >&2 || echo "apt-get update failed; continuing with the package lists on this machine" >&2
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends systemd >&2 ||
            fail "the Debian package systemd could not be installed; see the output of apt-get above"
    fi
    unshare --mount --pid --fork --uts --ipc --net --cgroup --propagation private mount -t tmpfs tmpfs /mnt 2>/dev/null ||
        fail "namespaces and mounts are not allowed here (a container needs CAP_SYS_ADMIN, without a seccomp or AppArmor profile that forbids it)"
}

# ---- cgroups: each machine has its own in every hierarchy, so that machines do not interfere

hierarchies() {  # lines: TYPE OPTIONS PLACE
    awk '$3 == "cgroup2" {print $3, "-", $2} $3 == "cgroup" {n = split($4, o, ","); for (i = 1; i <= n; i++)
        if (o[i] ~ /^(memory|pids|cpu|cpuacct|name=systemd)$/) {print $3, o[i], $2; break}}' /proc/mounts
}

own_cgroups() {  # of machine $1: the folders
    local type options place
    hierarchies | while read -r type options place; do echo "$place/jobscribe-$1"; done
}

enter_cgroups() {
    local folder
    for folder in $(own_cgroups "$1"); do
        mkdir -p "$folder" && echo $$ >"$folder/cgroup.procs"
    done
}

leave_no_cgroups() {
    local folder i
    for folder in $(own_cgroups "$1"); do
        for ((i = 0; i < 100; i++)); do  # who was killed may still be on the way out
            [[ -d $folder ]] || break
            find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || sleep .05
        done
    done
}

mount_cgroups() {  # below $1, in a cgroup namespace of the machine's own
    local type options place
    if [[ $CGROUP == 2 ]] || ! hierarchies | grep -q '^cgroup '; then
        mount -t cgroup2 cgroup2 "$1"
        return
    fi
    local list; list=$(hierarchies)
    mount -t tmpfs -o mode=755 tmpfs "$1"
    mkdir "$1/unified" && mount -t cgroup2 cgroup2 "$1/unified"
    [[ $list == *name=systemd* ]] || list+=$'\n'"cgroup name=systemd -"
    while read -r type options place; do
        [[ $type == cgroup ]] || continue
        mkdir "$1/${options#name=}" && mount -t cgroup -o "$([[ $options == name=* ]] && echo none,)$options" cgroup "$1/${options#name=}"
    done <<<"$list"
}

# ---- inside the namespaces of the machine

machine() {  # holds the files, and boots again when it is told to
    local d=$DIR/$1 code bound
    enter_cgroups "$1"
    mount -t tmpfs -o mode=755 tmpfs "$d/files"
    mkdir "$d"/files/{upper,work,root}
    mount -t overlay overlay -o "lowerdir=/,upperdir=$d/files/upper,workdir=$d/files/work" "$d/files/root"
    furnish "$d/files/root" "$1"
    mount -t tmpfs -o mode=1777 tmpfs "$d/files/root/tmp"
    for bound in $BIND; do
        if [[ -d $bound ]]; then mkdir -p "$d/files/root$bound"; else mkdir -p "$d/files/root${bound%/*}"; : >"$d/files/root$bound"; fi
        mount --rbind "$bound" "$d/files/root$bound" && mount -o remount,bind,ro "$d/files/root$bound"
    done
    while true; do
        cat /proc/sys/kernel/random/uuid >"$d/boot_id"
        code=0
        unshare --pid --fork --mount --propagation private --uts --ipc --cgroup $([[ $NET == host ]] || echo --net) \
            "$self" boot "$1" || code=$?
        [[ $code == 129 ]] || break  # a namespace whose first process asks for a reboot ends by SIGHUP
    done
}

furnish() {  # what must not come from the machine out here: what it starts, who it is
    local r=$1
    rm -rf "$r"/etc/systemd/system/*.{wants,requires,d} "$r"/etc/rc?.d "$r"/var/log/journal
    mkdir -p "$r/var/log/journal" "$r/tmp" "$r/run"
    tr -d - </proc/sys/kernel/random/uuid >"$r/etc/machine-id"
    echo "$2" >"$r/etc/hostname"
}

boot() {
    local d=$DIR/$1 r=$DIR/$1/files/root name number pid _
    # /proc still belongs to the outer namespace, so this is the outer pid
    read -r pid _ </proc/self/stat
    mount -t proc proc "$r/proc"
    mount --bind "$r/proc/sys" "$r/proc/sys" && mount -o remount,bind,ro "$r/proc/sys"
    mount --bind "$d/boot_id" "$r/proc/sys/kernel/random/boot_id"
    mount -t sysfs -o ro sysfs "$r/sys"
    mount_cgroups "$r/sys/fs/cgroup"
    mount -t tmpfs -o mode=755 tmpfs "$r/dev"
    mkdir "$r"/dev/{pts,shm}
    mount -t devpts -o newinstance,ptmxmode=666 devpts "$r/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$r/dev/shm"
    for name in null zero full random urandom tty; do
        : >"$r/dev/$name" && mount --bind "/dev/$name" "$r/dev/$name"
    done
    ln -s pts/ptmx "$r/dev/ptmx"
    ln -s /proc/self/fd "$r/dev/fd"
    number=0
    for name in stdin stdout stderr; do ln -s "/proc/self/fd/$number" "$r/dev/$name"; number=$((number + 1)); done
    mount -t tmpfs -o mode=755 tmpfs "$r/run"
    hostname "$1"
    echo "$pid" >"$d/pid"
    exec env -i container=jobscribe-test PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        chroot "$r" "$init" --show-status=false --unit=multi-user.target
}

# ---- outside the machine

up() {
    local d=$DIR/$1 i
    if ! living "$(first "$1")"; then
        check
        mkdir -p "$d/files"
        rm -f "$d/pid"
        DIR=$DIR BIND=$BIND NET=$NET CGROUP=$CGROUP setsid unshare --mount --propagation private "$self" machine "$1" \
            >"$d/log" 2>&1 </dev/null &
        echo $! >"$d/machine"
        for ((i = 0; i < 300; i++)); do
            [[ $(inside "$1" systemctl is-system-running 2>/dev/null) =~ running|degraded ]] && break
            living "$(<"$d/machine")" || break
            sleep .1
        done
    fi
    status "$1" || { cat "$d/log" >&2; fail "systemd did not start; see its output above"; }
}

inside() {
    local pid; pid=$(first "$1") || fail "there is no machine $1"
    nsenter --target "$pid" --all --root env --chdir=/ -i HOME=/root LANG=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${@:2}"
}

status() {
    living "$(first "$1")" || return 1
    echo "$(first "$1") $(inside "$1" systemctl is-system-running)"
}

down() {
    local d=$DIR/$1 pid i
    [[ -d $d ]] || return 0
    # first the process that would boot it again
    for pid in "$(cat "$d/machine" 2>/dev/null || true)" "$(first "$1" || true)"; do
        ! living "$pid" || kill -KILL "$pid"
        for ((i = 0; i < 200; i++)); do living "$pid" || break; sleep .05; done
    done
    leave_no_cgroups "$1"
    rm -rf --one-file-system "$d"
}

verb=${1:-} name=${2:-}
case $verb in
    check) check ;;
    up | exec | status | down | machine | boot)
        [[ $name =~ ^[a-z0-9-]+$ ]] || fail "a machine's name consists of lower-case letters, digits and -"
        shift
        case $verb in exec) inside "$@" ;; *) "$verb" "$name" ;; esac ;;
    *) sed -n '2,/^set /s/^# \{0,1\}//p' "$self" >&2; exit 2 ;;
esac
