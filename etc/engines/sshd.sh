#!/bin/bash
# A login node on this machine, for the tests: OpenSSH on loopback with its own PAM service and unix users, one for each way to sign in. A
# second server has another host key, a third one is a jump host. Needs root.
#
#   sshd.sh install        install missing Debian packages (the same as slurm.sh install sshd)
#   sshd.sh check          check the requirements; installs nothing; 1 and a sentence if one is missing
#   sshd.sh users          only the unix users, with homes, keys and secrets (the first step of `up`)
#   sshd.sh up             users and all three servers (repeatable: starts whatever is missing)
#   sshd.sh down           stop the servers and all their sessions; users stay
#   sshd.sh clean          the same, kill all processes of these users, remove them, the PAM service and DIR
#   sshd.sh status         a line for each server; 1 unless all are up
#   sshd.sh start|stop|restart|freeze|thaw SERVER    stop: its sessions continue
#   sshd.sh sever SERVER [USER]              kill its sessions (of this user); processes that they started continue
#   sshd.sh cut SERVER [drop|reject]         block its port by a firewall rule; drop: packets vanish, also those of open connections
#   sshd.sh mend SERVER                      remove that rule
#   sshd.sh identity SERVER main|other|jump  restart it with the host keys of that server
#   sshd.sh certificate USER SECS [KEY]      a certificate for DIR/client/KEY (key) by the trusted authority, valid for SECS
#   sshd.sh well           mend, thaw, start and restore host keys as needed
#
# Servers: main, other (another key, same name), jump. Users, after PREFIX-:
#   alice bob    key, certificate, password, keyboard-interactive          key, pw, kbd   only that method (kbd: one prompt, the password)
#   one          password and code in one prompt      two   password, then code           keycode   key, then code
#   cert         certificate only                     locked, expired, stale   account locked; expired; password must be changed first
#   noisy        the shell's start-up files write to stdout         nologin   no shell
# A code is valid once. Secrets: DIR/secrets (password, TOTP secret in base32); they are on no command line.
#
# DIR        folder of all files (/var/tmp/jobscribe-sshd), with homes; below it client/{key,stranger}, known_hosts, ca.pub, log/
# PORT       of the first of three servers, on loopback (16950)       PREFIX  of the user names, unused otherwise (js)
# SLURM_CONF, if set, is passed to the environment of every session
# Two of these with different DIR, PORT and PREFIX do not interfere.
set -euo pipefail
DIR=${DIR:-/var/tmp/jobscribe-sshd} PORT=${PORT:-16950} PREFIX=${PREFIX:-js} SLURM_CONF=${SLURM_CONF:-}
WAIT_SECS=60
servers="main other jump"
names="alice bob key pw kbd one two keycode cert locked expired stale noisy nologin"
service=jobscribe-sshd-$PORT  # sshd takes the PAM service that is called like itself
packages="openssh-server openssh-client libpam-google-authenticator iptables oathtool"
export LC_ALL=C
PATH=$PATH:/usr/sbin:/sbin

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
        sleep 0.03
    done
}

# ---- requirements

missing() {
    local command out=()
    for command in sshd ssh-keygen iptables newusers oathtool; do command -v "$command" >/dev/null || out+=("$command"); done
    compgen -G "/lib/*/security/pam_google_authenticator.so" >/dev/null || out+=(pam_google_authenticator.so)
    echo "${out[*]}"
}

lacks() { [[ -z $(missing) ]] || echo "$packages"; }

check() {
    [[ $(id -u) == 0 ]] || fail "only root can start a login node"
    [[ -z $(missing) ]] || fail "not installed: $(missing); run etc/engines/sshd.sh install"
    iptables -w -n -L INPUT >/dev/null 2>&1 || fail "iptables does not work here (a container needs CAP_NET_ADMIN)"
}

install() { "$(dirname "$(readlink -f "$0")")/slurm.sh" install sshd; }

# ---- users

secrets() {
    [[ ! -s $DIR/secrets ]] || return 0
    (umask 077 && printf '%s\n' "$(head -c 12 /dev/urandom | base32 | tr -d =)" "$(head -c 20 /dev/urandom | base32)" >"$DIR/secrets.new")
    mv "$DIR/secrets.new" "$DIR/secrets"
}

keys() {
    command install -d -m 700 "$DIR/client" "$DIR/host"
    local path
    for path in ca client/key client/stranger host/main host/other host/jump; do
        [[ -s $DIR/$path ]] || ssh-keygen -q -t ed25519 -N '' -C "jobscribe test" -f "$DIR/$path"
    done
    # a server has keys of several types, and clients may know only one of them
    [[ -s $DIR/host/main.ecdsa ]] || ssh-keygen -q -t ecdsa -N '' -C "jobscribe test" -f "$DIR/host/main.ecdsa"
}

users() {
    [[ $(id -u) == 0 ]] || fail "only root can create unix users"
    [[ $PREFIX =~ ^[a-z][a-z0-9]{1,15}$ ]] || fail "PREFIX must have 2 to 16 lower-case letters and digits, starting with a letter"
    command install -d -m 755 "$DIR" "$DIR/home" "$DIR/log" "$DIR/run"
    command install -d -m 700 "$DIR/codes"
    secrets
    keys
    local name new=() password shell home
    { read -r password; read -r code; } <"$DIR/secrets"
    for name in $names; do
        id "$PREFIX-$name" >/dev/null 2>&1 && continue
        shell=/bin/bash
        [[ $name != nologin ]] || shell=/usr/sbin/nologin
        new+=("$PREFIX-$name:$password:::jobscribe test:$DIR/home/$PREFIX-$name:$shell")
    done
    ((${#new[@]})) || return 0
    exec 9</etc
    flock 9  # several may change this machine's users at once
    printf '%s\n' "${new[@]}" | newusers
    for name in $names; do
        home=$DIR/home/$PREFIX-$name
        command install -d -m 700 -o "$PREFIX-$name" -g "$PREFIX-$name" "$home" "$home/.ssh" "$home/scratch"
        [[ $name == cert ]] || command install -m 600 -o "$PREFIX-$name" -g "$PREFIX-$name" "$DIR/client/key.pub" "$home/.ssh/authorized_keys"
        printf '%s\n' "$code" '" TOTP_AUTH' '" DISALLOW_REUSE' '" WINDOW_SIZE 100' | command install -m 600 /dev/stdin "$DIR/codes/$PREFIX-$name"
    done
    echo 'echo "Welcome to the cluster. {\"not\": \"yours\"}"; echo "You have mail." >&2' | tee "$DIR/home/$PREFIX-noisy/.bashrc" >"$DIR/home/$PREFIX-noisy/.profile"
    usermod -L "$PREFIX-locked"
    chage -E 1 "$PREFIX-expired"
    chage -d 0 "$PREFIX-stale"
    exec 9<&-
}

certificate() {  # USER SECS [KEY]
    local key=${3:-key}
    ssh-keygen -q -s "$DIR/ca" -I "$1" -n "$1" -V "-1m:+$2s" "$DIR/client/$key.pub"
    echo "$DIR/client/$key-cert.pub"
}

# ---- servers

port_of() {
    local n=0 server
    for server in $servers; do
        [[ $server != "$1" ]] || { echo $((PORT + n)); return; }
        n=$((n + 1))
    done
    fail "there is no server $1; the servers are: $servers"
}

pid_of() { cat "$DIR/run/$1.pid" 2>/dev/null || true; }

pam() {  # all that google's module writes is the file of codes that were used
    local google="pam_google_authenticator.so secret=$DIR/codes/\${USER} user=root allowed_perm=0600"
    sed 's/^ *//' >"/etc/pam.d/$service" <<C
        # for the tests of jobscribe; etc/engines/sshd.sh creates and removes this file
        auth [success=4 default=ignore] pam_succeed_if.so quiet user = $PREFIX-keycode
        auth [success=4 default=ignore] pam_succeed_if.so quiet user = $PREFIX-one
        auth requisite pam_unix.so nodelay
        auth [success=1 default=ignore] pam_succeed_if.so quiet user = $PREFIX-two
        auth sufficient pam_permit.so
        auth [success=done default=die] $google
        auth [success=ok default=die] $google forward_pass [authtok_prompt=Password + OTP: ]
        auth [success=done default=die] pam_unix.so use_first_pass nodelay
        account required pam_succeed_if.so quiet user != $PREFIX-locked
        account required pam_unix.so
        password required pam_unix.so
        session required pam_env.so conffile=$DIR/environment readenv=0
        session required pam_unix.so
C
    echo 'SCRATCH DEFAULT=@{HOME}/scratch' >"$DIR/environment"
}

configure() {  # SERVER
    local identity key
    identity=$(cat "$DIR/run/$1.identity" 2>/dev/null || echo "$1")
    {
        for key in "$DIR/host/$identity" "$DIR/host/$identity.ecdsa"; do [[ ! -e $key ]] || echo "HostKey $key"; done
        [[ -z $SLURM_CONF ]] || echo "SetEnv SLURM_CONF=$SLURM_CONF"
        sed 's/^ *//' <<C
            ListenAddress 127.0.0.1
            Port $(port_of "$1")
            PidFile $DIR/run/$1.pid
            TrustedUserCAKeys $DIR/ca.pub
            AllowUsers $PREFIX-*
            PermitRootLogin no
            UsePAM yes
            PasswordAuthentication yes
            KbdInteractiveAuthentication yes
            MaxAuthTries 3
            MaxStartups 100:30:200
            LoginGraceTime 30
            UseDNS no
            PrintMotd no
            PrintLastLog no
            LogLevel VERBOSE
            Banner $DIR/banner
            Subsystem sftp internal-sftp
            Match User $PREFIX-key
            AuthenticationMethods publickey
            Match User $PREFIX-cert
            AuthenticationMethods publickey
            AuthorizedKeysFile none
            Match User $PREFIX-pw
            AuthenticationMethods password
            Match User $PREFIX-kbd,$PREFIX-one,$PREFIX-two
            PasswordAuthentication no
            AuthenticationMethods keyboard-interactive:pam
            Match User $PREFIX-keycode
            AuthenticationMethods publickey,keyboard-interactive:pam
C
    } >"$DIR/run/$1.conf"
}

start() {
    local port
    port=$(port_of "$1")
    living "$(pid_of "$1")" && return
    ! answers "$port" || fail "another process listens on port $port: set another PORT"
    rm -f "$DIR/run/$1.pid"
    configure "$1"
    command install -d -m 755 /run/sshd  # sshd does not start without it
    (cd / && "$DIR/$service" -f "$DIR/run/$1.conf" -E "$DIR/log/$1") || fail "the server $1 does not start; see DIR/log/$1"
    until_true "$WAIT_SECS" up_one "$1" || { tail "$DIR/log/$1" >&2; fail "the server $1 does not start"; }
}

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
up_one() { [[ $(ss -Hltn "sport = :$(port_of "$1")") ]] && living "$(pid_of "$1")"; }

stop() {
    local pid left
    pid=$(pid_of "$1")
    living "$pid" || return 0
    left=$(sessions "$1")  # they are nobody's children when it is gone
    echo "$left" >"$DIR/run/$1.left"
    kill -CONT "$pid"
    kill "$pid"
    until_true "$WAIT_SECS" dead "$pid" || fail "the server $1 (pid $pid) does not stop"
}

dead() { ! living "$1"; }

sessions() {  # pids of the processes of sshd's own that serve somebody
    local pid all
    pid=$(pid_of "$1")
    all=$(below "$pid" $(cat "$DIR/run/$1.left" 2>/dev/null || true))
    for pid in $all; do
        if [[ $(readlink "/proc/$pid/exe" 2>/dev/null) == "$(readlink -f "$DIR/$service")" ]]; then echo "$pid"; fi
    done
}

below() {  # these pids (but not the first one) and all their descendants
    ps -e -o pid= -o ppid= | awk -v given="$*" '
        BEGIN {n = split(given, g, " "); for (i = 1; i <= n; i++) seen[g[i]] = 1; first = g[1]}
        {parent[$1] = $2}
        END {do {more = 0; for (p in parent) if (!(p in seen) && (parent[p] in seen)) {seen[p] = 1; more = 1}} while (more)
            for (p in seen) if (p != first && p in parent) print p}'
}

sever() {
    local pid
    for pid in $(sessions "$1"); do
        if [[ -z ${2:-} || $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null) =~ ^"$service":\ "$2"[@\ ] ]]; then kill -KILL "$pid" 2>/dev/null || true; fi
    done
}

freeze() {
    # shellcheck disable=SC2046
    kill -STOP "$(pid_of "$1")" $(sessions "$1")
}

thaw() {
    # shellcheck disable=SC2046
    kill -CONT "$(pid_of "$1")" $(sessions "$1") 2>/dev/null || true
}

restart() { stop "$1"; start "$1"; }

identity() {
    port_of "$2" >/dev/null
    if [[ $1 == "$2" ]]; then rm -f "$DIR/run/$1.identity"; else echo "$2" >"$DIR/run/$1.identity"; fi
    restart "$1"
}

cut() {
    local port way
    port=$(port_of "$1")
    mend "$1"
    case ${2:-drop} in
        drop) way="DROP" ;;
        reject) way="REJECT --reject-with tcp-reset" ;;
        *) fail "cut SERVER [drop|reject]" ;;
    esac
    # shellcheck disable=SC2086
    iptables -w -I INPUT -i lo -p tcp --dport "$port" -m comment --comment "$service" -j $way
    # the answers to refused packets come from that port and must pass
    [[ $way != DROP ]] || iptables -w -I INPUT -i lo -p tcp --sport "$port" -m comment --comment "$service" -j DROP
}

mend() {
    local port rule
    port=$(port_of "$1")
    while rule=$(iptables -w -S INPUT | grep -E -- "--[ds]port $port .*--comment \"?$service" | head -n 1) && [[ $rule ]]; do
        # shellcheck disable=SC2086
        iptables -w ${rule/-A/-D}
    done
}

# ---- everything

up() {
    check
    users
    ln -sfn /usr/sbin/sshd "$DIR/$service"
    pam
    printf '%s\n' "This is a test. Whoever uses this machine is watched, and agrees." "" >"$DIR/banner"
    local server pids=() pid
    for server in $servers; do
        echo "[127.0.0.1]:$(port_of "$server") $(cut_key "$DIR/host/$server.pub")"
        [[ ! -e $DIR/host/$server.ecdsa.pub ]] || echo "[127.0.0.1]:$(port_of "$server") $(cut_key "$DIR/host/$server.ecdsa.pub")"
    done >"$DIR/known_hosts"
    for server in $servers; do
        start "$server" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || fail "some servers do not start"; done
}

cut_key() { local kind key _; read -r kind key _ <"$1"; echo "$kind $key"; }

down() {
    local server
    [[ -d $DIR/run ]] || return 0
    for server in $servers; do
        if [[ -e $DIR/run/$server.pid ]]; then mend "$server"; thaw "$server"; sever "$server"; stop "$server"; fi
    done
}

well() {
    local server
    for server in $servers; do
        mend "$server"
        if [[ -e $DIR/run/$server.identity ]]; then rm "$DIR/run/$server.identity"; thaw "$server"; stop "$server"; fi
        if living "$(pid_of "$server")"; then thaw "$server"; else start "$server"; fi
    done
}

clean() {
    local name pids
    down
    exec 9</etc
    flock 9
    for name in $names; do
        id "$PREFIX-$name" >/dev/null 2>&1 || continue
        pids=$(ps -o pid= -u "$PREFIX-$name" || true)
        # shellcheck disable=SC2086
        [[ -z $pids ]] || kill -KILL $pids 2>/dev/null || true
        userdel -f "$PREFIX-$name" >/dev/null 2>&1 || true
    done
    exec 9<&-
    rm -f "/etc/pam.d/$service"
    rm -rf "$DIR"
}

status() {
    local server bad=0
    for server in $servers; do
        if up_one "$server"; then echo "$server 127.0.0.1:$(port_of "$server") up $(pid_of "$server")"; else bad=1; echo "$server down"; fi
    done
    return "$bad"
}

case ${1:-} in
    install | check | lacks | users | up | down | clean | status | well) "$1" ;;
    start | stop | restart | freeze | thaw | mend | sever | cut | identity)
        port_of "${2:-}" >/dev/null
        "$@"
        ;;
    certificate) certificate "${2:?USER}" "${3:?SECS}" "${4:-key}" ;;
    *) fail "sshd.sh install | check | users | up | down | clean | status | well, start | stop | restart | freeze | thaw | sever | cut | mend | identity SERVER, or certificate USER SECS" ;;
esac
