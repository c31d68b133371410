#!/bin/bash
# A Slurm cluster on this machine, for the tests: Debian's slurmctld, slurmdbd with its own MariaDB, munged, and one slurmd per node, each with
# its own host name (in a UTS namespace). Everything listens on loopback; Debian's services are not used. Needs root.
#
#   slurm.sh install [SCRIPT...]   install missing Debian packages of these scripts (slurm sshd mpi) in one call of apt
#   slurm.sh check                 check the requirements; installs nothing; 1 and a sentence if one is missing
#   slurm.sh up                    start everything, with accounts and QOS; returns when all nodes are idle (repeatable: starts whatever is missing)
#   slurm.sh down                  end all jobs, then all daemons; their files stay
#   slurm.sh clean                 kill everything at once, and remove DIR and the cgroups
#   slurm.sh status                a line for each daemon; 1 unless all are up
#   slurm.sh env                   shell variables with which sbatch and the other commands use this cluster
#   slurm.sh reconfigure           rewrite the configuration with the parameters of this call, and let Slurm read it
#   slurm.sh start|stop|kill|restart DAEMON    one of slurmctld, slurmdbd, mariadb, munged or a node (its slurmd; its jobs continue)
#   slurm.sh freeze|thaw DAEMON    it accepts connections and does not answer
#   slurm.sh crash NODE            a power failure: kill slurmd and all processes of the node
#   slurm.sh boot NODE             start it again, as after a reboot
#   slurm.sh well                  start and thaw daemons as needed; resume nodes that are down or drained
#   slurm.sh account USER,... NAME,...  unix users and their accounts; the first account is the default
#   slurm.sh forget USER,...       remove them from accounting
#
# DIR      folder of all files (/var/tmp/jobscribe-slurm); clients need only DIR/slurm.conf
# PORT     the first of 2 + NODES on loopback (16900)     NAME  of the cluster (lab)      NODE  prefix of node names (n)
# NODES    how many (3)      CPUS, MEM  of each, independent of the machine (4, 1000 MiB)   GPUS  simulated, of each (0)
# CGROUP   1: track jobs and limit their memory by cgroups (v1 only); 0: by process parentage, without limits. Unset: depends on the machine
# ENFORCE  1: require an account and apply QOS limits; 0: accept every user (1)
# FORGET_SECS  time after which squeue forgets an ended job (300)      EXTRA  more lines for slurm.conf
# PEOPLE   users and their accounts out of research, chem (the only one for the partition small) and spent (whose budget is used up):
#          "ann:research,chem bob:research"
# Later calls need only DIR: `up` stores its parameters there. Two of these with different DIR, PORT and NODE do not interfere.
set -euo pipefail
DIR=${DIR:-/var/tmp/jobscribe-slurm}
parameters="PORT NAME NODE NODES CPUS MEM GPUS CGROUP ENFORCE FORGET_SECS EXTRA PEOPLE"
for name in $parameters; do printf -v "given_$name" '%s' "${!name-(none)}"; done
PORT=16900 NAME=lab NODE=n NODES=3 CPUS=4 MEM=1000 GPUS=0 CGROUP='' ENFORCE=1 FORGET_SECS=300 EXTRA='' PEOPLE=''
# shellcheck disable=SC1091
[[ ! -s $DIR/parameters ]] || . "$DIR/parameters"
for name in $parameters; do
    given=given_$name
    [[ ${!given} == "(none)" ]] || printf -v "$name" '%s' "${!given}"
done
WAIT_SECS=60
self=$(dirname "$(readlink -f "$0")")
packages="slurmctld slurmd slurmdbd slurm-client munge mariadb-server"
export SLURM_CONF=$DIR/slurm.conf LC_ALL=C
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
    for command in slurmctld slurmd slurmdbd sbatch munged mariadbd; do command -v "$command" >/dev/null || out+=("$command"); done
    echo "${out[*]}"
}

lacks() { [[ -z $(missing) ]] || echo "$packages"; }  # missing Debian packages

check() {
    [[ $(id -u) == 0 ]] || fail "only root can start a Slurm cluster"
    [[ -z $(missing) ]] || fail "not installed: $(missing); run etc/engines/slurm.sh install"
    unshare --uts --mount true 2>/dev/null || fail "namespaces are not allowed here (a container needs CAP_SYS_ADMIN, without a seccomp or AppArmor profile that forbids it)"
    [[ $CGROUP != 1 ]] || cgroups || fail "cgroups v1 with freezer and memory are missing here: set CGROUP=0"
}

cgroups() { [[ -w /sys/fs/cgroup/freezer/cgroup.procs && -w /sys/fs/cgroup/memory/cgroup.procs ]]; }

install() {
    local all="" script
    for script in "${@:-slurm}"; do all+=" $("$self/$script.sh" lacks)"; done
    [[ ${all// /} ]] || return 0
    [[ $(id -u) == 0 ]] || fail "not installed, and only root can install them:$all"
    command -v apt-get >/dev/null || fail "not installed, and this is not Debian:$all"
    echo "installing Debian packages (once):$all" >&2
    apt-get update -qq >&2 || echo "apt-get update failed; continuing with the package lists on this machine" >&2
    quietly "$all"
    for script in "${@:-slurm}"; do [[ -z $("$self/$script.sh" lacks) ]] || fail "$script: some packages are still missing"; done
}

quietly() {  # install, and start nothing: neither now nor when the machine boots
    local policy=/usr/sbin/policy-rc.d unit before=""
    if [[ ! -e $policy ]]; then
        printf '%s\n' '#!/bin/sh' 'exit 101' >"$policy"
        chmod 755 "$policy"
        # shellcheck disable=SC2064
        trap "rm -f $policy" EXIT
    fi
    for unit in ssh munge mariadb slurmctld slurmdbd slurmd; do [[ ! -e /lib/systemd/system/$unit.service ]] || before+=" $unit "; done
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 $1 >&2 ||
        fail "these Debian packages could not be installed: $1; see the output of apt-get above"
    for unit in ssh munge mariadb slurmctld slurmdbd slurmd; do
        [[ $before == *" $unit "* ]] || ! command -v systemctl >/dev/null || systemctl disable --quiet "$unit" 2>/dev/null || true
    done
}

# ---- configuration

nodes() { seq -f "$NODE%g" "$NODES"; }

folders() {
    command install -d -m 755 "$DIR" "$DIR/spool" "$DIR/gpu"
    command install -d -m 755 -o slurm -g slurm "$DIR/state" "$DIR/log" "$DIR/run"
    command install -d -m 700 -o slurm -g slurm "$DIR/db"
    command install -d -m 700 -o munge -g munge "$DIR/munge"
    command install -d -m 755 -o munge -g munge "$DIR/socket"
    if [[ ! -s $DIR/munge/key ]]; then
        (umask 077 && head -c 128 /dev/urandom >"$DIR/munge/key")
        chown munge: "$DIR/munge/key"
    fi
    local n
    # simulated GPUs: Slurm needs device files, and these belong to no hardware
    for ((n = 0; n < GPUS; n++)); do [[ -e $DIR/gpu/gpu$n ]] || mknod -m 666 "$DIR/gpu/gpu$n" c 1 3; done
}

configure() {
    local name track=proctrack/linuxproc task=task/none gather=jobacct_gather/linux ram=no
    [[ $CGROUP ]] || { cgroups && CGROUP=1 || CGROUP=0; }
    [[ $CGROUP == 0 ]] || track=proctrack/cgroup task=task/cgroup gather=jobacct_gather/cgroup ram=yes
    for name in $parameters; do printf '%s=%q\n' "$name" "${!name}"; done >"$DIR/parameters.new"
    mv "$DIR/parameters.new" "$DIR/parameters"
    # every daemon has a host name that resolves to loopback, whatever this machine's name is
    { echo "127.0.0.1 localhost $(nodes | tr '\n' ' ')"; cat /etc/hosts; } >"$DIR/hosts"
    sed 's/^ *//' >"$DIR/slurm.conf.new" <<C
        ClusterName=$NAME
        SlurmctldHost=localhost(127.0.0.1)
        SlurmctldPort=$PORT
        SlurmUser=slurm
        AuthType=auth/munge
        AuthInfo=socket=$DIR/socket/munge
        CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
        StateSaveLocation=$DIR/state
        SlurmctldPidFile=$DIR/run/slurmctld.pid
        SlurmctldLogFile=$DIR/log/slurmctld.log
        SlurmdSpoolDir=$DIR/spool/%n
        SlurmdPidFile=$DIR/run/%n.pid
        SlurmdLogFile=$DIR/log/%n.log
        SlurmdParameters=config_overrides
        ProctrackType=$track
        TaskPlugin=$task
        JobAcctGatherType=$gather
        JobAcctGatherFrequency=task=2
        SelectType=select/cons_tres
        SelectTypeParameters=CR_Core_Memory
        DefMemPerCPU=100
        SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
        PreemptType=preempt/qos
        PreemptMode=REQUEUE
        ReturnToService=2
        SlurmdTimeout=10
        SlurmctldTimeout=10
        MessageTimeout=5
        InactiveLimit=0
        KillWait=3
        MinJobAge=$FORGET_SECS
        Licenses=solver:2
        AccountingStorageType=accounting_storage/slurmdbd
        AccountingStorageHost=127.0.0.1
        AccountingStoragePort=$((PORT + 1))
        AccountingStoragePass=$DIR/socket/munge
        AccountingStoreFlags=job_comment
        $( ((ENFORCE == 0)) || echo "AccountingStorageEnforce=associations,limits,qos")
        JobCompType=jobcomp/none
        MailProg=/bin/true
        MpiDefault=none
        $( ((GPUS == 0)) || echo "GresTypes=gpu")
        NodeName=${NODE}1 NodeAddr=127.0.0.1 Port=$((PORT + 2)) $(each_node) Feature=old
        $( ((NODES == 1)) || echo "NodeName=${NODE}[2-$NODES] NodeAddr=127.0.0.1 Port=[$((PORT + 3))-$((PORT + 1 + NODES))] $(each_node) Feature=new")
        PartitionName=debug Nodes=ALL Default=YES DefaultTime=1 MaxTime=5 PriorityTier=2
        PartitionName=batch Nodes=ALL DefaultTime=10 MaxTime=2-00:00:00
        PartitionName=small Nodes=ALL DefaultTime=10 MaxTime=60 MaxNodes=1 AllowAccounts=chem
        PartitionName=closed Nodes=${NODE}1 State=DOWN
        $EXTRA
C
    mv "$DIR/slurm.conf.new" "$DIR/slurm.conf"
    ((GPUS == 0)) || echo "Name=gpu File=$DIR/gpu/gpu[0-$((GPUS - 1))]" >"$DIR/gres.conf"
    printf '%s\n' CgroupPlugin=cgroup/v1 CgroupAutomount=no ConstrainCores=no "ConstrainRAMSpace=$ram" ConstrainSwapSpace=no >"$DIR/cgroup.conf"
    sed 's/^ *//' <<C | command install -m 600 -o slurm -g slurm /dev/stdin "$DIR/slurmdbd.conf"
        DbdHost=localhost
        DbdAddr=127.0.0.1
        DbdPort=$((PORT + 1))
        CommunicationParameters=NoInAddrAny
        SlurmUser=slurm
        AuthType=auth/munge
        AuthInfo=socket=$DIR/socket/munge
        LogFile=$DIR/log/slurmdbd.log
        PidFile=$DIR/run/slurmdbd.pid
        StorageType=accounting_storage/mysql
        StorageHost=localhost
        StorageUser=slurm
        StorageLoc=slurm_accounting
C
    # runs at each start of the server. The minimum: no sign-in, because only root and slurm can access its socket
    { printf '%s\n' "create database if not exists mysql;" "use mysql;"; cat /usr/share/mysql/mysql_system_tables.sql; } >"$DIR/tables.sql"
}

each_node() { echo "CPUS=$CPUS RealMemory=$MEM State=UNKNOWN$( ((GPUS == 0)) || echo " Gres=gpu:$GPUS")"; }

# ---- daemons

on_host() {  # a command on a host with that name, which is loopback's there, and so are those of all others
    # shellcheck disable=SC2016
    exec unshare --uts --mount --propagation slave sh -c '
        mount --bind "$1/hosts" /etc/hosts && echo "$2" >/proc/sys/kernel/hostname || exit 1
        shift 2
        exec "$@"' sh "$DIR" "$@"
}

is_node() { [[ $1 =~ ^$NODE[1-9][0-9]*$ && ${1#"$NODE"} -le $NODES ]]; }

pid_file() {
    case $1 in
        munged) echo "$DIR/munge/pid" ;;
        mariadb) echo "$DIR/db/pid" ;;
        slurmctld | slurmdbd) echo "$DIR/run/$1.pid" ;;
        *) is_node "$1" || fail "there is no daemon $1; the daemons are: munged mariadb slurmdbd slurmctld $(nodes | tr '\n' ' ')"
            echo "$DIR/run/$1.pid" ;;
    esac
}

pid_of() { cat "$(pid_file "$1")" 2>/dev/null || true; }
up_one() { living "$(pid_of "$1")"; }

start() {
    local file
    file=$(pid_file "$1")
    up_one "$1" && return
    rm -f "$file"
    cd /
    case $1 in
        munged)
            rm -f "$DIR"/socket/munge*
            setpriv --reuid munge --regid munge --clear-groups munged --key-file="$DIR/munge/key" --socket="$DIR/socket/munge" --num-threads=4 \
                --pid-file="$file" --log-file="$DIR/munge/log" --seed-file="$DIR/munge/seed" ;;
        mariadb)
            setsid mariadbd --no-defaults --user=slurm --datadir="$DIR/db" --socket="$DIR/db/socket" --pid-file="$file" --init-file="$DIR/tables.sql" \
                --skip-networking --skip-grant-tables --skip-log-bin --performance-schema=off --innodb-buffer-pool-size=32M \
                --innodb-log-file-size=16M --innodb-data-file-path=ibdata1:4M:autoextend --innodb-flush-log-at-trx-commit=0 \
                --innodb-flush-method=nosync --aria-pagecache-buffer-size=4M --key-buffer-size=1M >>"$DIR/log/mariadb.log" 2>&1 </dev/null &
            until_true "$WAIT_SECS" mariadb-admin --no-defaults -S "$DIR/db/socket" ping ;;
        slurmdbd)
            slurmdbd_
            until_true "$WAIT_SECS" slurmdbd_answers ;;
        slurmctld)
            (on_host localhost slurmctld)
            until_true "$WAIT_SECS" scontrol ping ;;
        *) slurmd_of "$1" ;;
    esac || { tail -n 20 "$DIR"/log/"$1".log >&2; fail "$1 does not start"; }
    until_true "$WAIT_SECS" up_one "$1" || { tail -n 20 "$DIR"/log/"$1".log >&2; fail "$1 stops again"; }
}

slurmdbd_() { (export MYSQL_UNIX_PORT=$DIR/db/socket; on_host localhost slurmdbd); }

slurmdbd_answers() {  # on a busy machine it ends because MariaDB's first answer is empty; then it is started again
    if ! up_one slurmdbd && grep -q "fatal: Unable to initialize" "$DIR/log/slurmdbd.log"; then : >"$DIR/log/slurmdbd.log"; slurmdbd_; fi
    sacctmgr -n show cluster
}

slurmd_of() {  # NODE [option of slurmd]: on the host where its jobs still are, if there are any
    local pid
    pid=$(processes_of "$1" | head -n 1)
    if [[ $pid ]] && (exec nsenter --target "$pid" --uts --mount slurmd -N "$1" "${@:2}"); then return; fi
    (on_host "$1" sh -c 'readlink /proc/self/ns/uts >"$1"; shift; exec "$@"' sh "$DIR/run/$1.uts" slurmd -N "$1" "${@:2}")
}

end() {  # DAEMON: orderly
    local pid
    pid=$(pid_of "$1")
    living "$pid" || return 0
    kill -CONT "$pid"
    kill "$pid"
    until_true 20 dead "$pid" || { kill -KILL "$pid"; until_true "$WAIT_SECS" dead "$pid"; }
}

kill_() {
    local pid
    pid=$(pid_of "$1")
    living "$pid" || return 0
    kill -KILL "$pid"
    until_true "$WAIT_SECS" dead "$pid"
}

dead() { ! living "$1"; }
freeze() { kill -STOP "$(pid_of "$1")"; }
thaw() { kill -CONT "$(pid_of "$1")"; }

# ---- nodes

processes_of() {  # of a node: slurmd, steps, jobs, and whatever they have left there
    local uts
    uts=$(cat "$DIR/run/$1.uts" 2>/dev/null) || return 0
    uts=${uts//[^0-9]/}
    find /proc/[0-9]*/ns/uts -maxdepth 0 -lname "uts:\[$uts\]" 2>/dev/null | cut -d/ -f3 || true
}

nobody_on() {
    local pid
    for pid in $(processes_of "$1"); do if living "$pid"; then return 1; fi; done
}

crash() {
    local deadline=$((SECONDS + WAIT_SECS))
    until nobody_on "$1"; do  # who was forking has a child that was not seen
        ((SECONDS < deadline)) || fail "processes of $1 do not end"
        # shellcheck disable=SC2046
        kill -KILL $(processes_of "$1") 2>/dev/null || true
    done
    rm -f "$(pid_file "$1")" "$DIR/run/$1.uts"
    cgroup_away "$1"
}

boot() {
    up_one "$1" && fail "node $1 is up: crash it first"
    crash "$1"
    slurmd_of "$1" -b
    until_true "$WAIT_SECS" up_one "$1" || fail "the slurmd of $1 stops again"
}

cgroup_away() {  # its processes are gone; what the kernel still clears away takes a moment
    local group
    for group in /sys/fs/cgroup/*/"slurm_$1"; do
        if [[ -d $group ]]; then until_true 10 find "$group" -depth -type d -exec rmdir {} + || true; fi
    done
}

started() {  # a controller that ends while the nodes register, which is rare, is started again
    if ! up_one slurmctld; then
        cp "$DIR/log/slurmctld.log" "$DIR/log/slurmctld.ended.log" || true
        (start slurmctld)
    fi
    idle && known
}

known() {  # does the controller know all users? It is told of each once, misses that if it is busy, and reads all of them when it starts
    until_true 5 knows_all && return
    cp "$DIR/log/slurmctld.log" "$DIR/log/slurmctld.unknown.log" || true
    (end slurmctld; start slurmctld)
    until_true 5 knows_all
}

knows_all() {
    local who users
    ((ENFORCE == 1)) || return 0
    users=$(scontrol show assoc_mgr flags=users)
    for who in root $PEOPLE; do [[ $users == *"UserName=${who%%:*}($(id -u "${who%%:*}"))"* ]] || return 1; done
}

idle() { [[ $(sinfo -hN -p batch -t idle,mix,alloc -o %N | wc -l) == "$NODES" ]]; }

well() {
    local daemon bad
    for daemon in munged mariadb slurmdbd slurmctld $(nodes); do
        if up_one "$daemon"; then thaw "$daemon"; else start "$daemon"; fi
    done
    until_true "$WAIT_SECS" scontrol ping
    bad=$(sinfo -hN -p batch -t down,drain,fail,maint -o %N | sort -u | paste -sd,)
    [[ -z $bad ]] || scontrol update "nodename=$bad" state=resume 2>/dev/null || true
    until_true "$WAIT_SECS" idle || { sinfo -lN >&2 || true; fail "some nodes do not become idle"; }
    until_true "$WAIT_SECS" known || fail "Slurm's controller does not know all users"
}

# ---- accounts

accounting() {  # sacctmgr waits more than it works, but two of it at once spoil the tree of accounts
    local said
    said=$(sacctmgr -iQ "$@" 2>&1) || [[ $said == *"Nothing new added"* ]] || fail "accounting refuses '$*': $said"
}

all_of() {  # commands, each of which is one word or several; at once
    local pid pids=() failed=0 command
    for command; do
        $command &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
    return "$failed"
}

there() {  # all unix users of PEOPLE: Slurm asks for their numbers but once
    local who
    for who in $PEOPLE; do id "${who%%:*}" || return 1; done
}

accounts() {
    local name who
    printf '%s\n' "add qos scavenger priority=0 preemptmode=requeue" "add qos high priority=100 preempt=scavenger" \
        "add qos short priority=5 maxwall=2 maxsubmitjobsperuser=2 flags=denyonlimit" | accounting
    {
        printf '%s\n' "Cluster - '$NAME'" "Parent - 'root'" "Account - 'research':QOS='normal,high,scavenger,short':DefaultQOS='normal'" \
            "Account - 'chem'" "Account - 'spent':GrpTRESMins='cpu=0'"
        for name in research chem spent; do
            echo "Parent - '$name'"
            for who in $PEOPLE; do
                if [[ ,${who#*:}, == *",$name,"* ]]; then echo "User - '${who%%:*}':DefaultAccount='$(first_of "${who#*:}")'"; fi
            done
        done
    } >"$DIR/accounts"
    until_true "$WAIT_SECS" there || fail "some of these users do not exist: $PEOPLE"
    accounting load "file=$DIR/accounts"
}

first_of() { echo "${1%%,*}"; }
account() { accounting add user "$1" "account=$2" "defaultaccount=$(first_of "$2")"; }
forget() { sacctmgr -iQ delete user "$1" >/dev/null 2>&1 || true; }

# ---- everything

up() {
    check
    folders
    configure
    start munged
    start mariadb
    start slurmdbd
    # the controller registers the cluster with accounting
    start slurmctld
    if [[ ! -e $DIR/db/accounts ]]; then all_of accounts slurmds; touch "$DIR/db/accounts"; else slurmds; fi
    until_true "$WAIT_SECS" started || { sinfo -lN >&2 || true; tail -n 20 "$DIR"/log/slurmctld.log >&2; fail "some nodes do not start, or its controller does not know all users"; }
}

slurmds() {
    local node starts=()
    for node in $(nodes); do starts+=("start $node"); done
    all_of "${starts[@]}"
}

down() {
    local node
    [[ -s $DIR/slurm.conf ]] || return 0
    if up_one munged && up_one slurmctld; then
        thaw slurmctld
        squeue -ho %A 2>/dev/null | xargs -r scancel || true
        until_true 20 no_jobs || true
    fi
    for node in $(nodes); do end "$node"; done
    for node in $(nodes); do crash "$node"; done
    end slurmctld
    end slurmdbd
    end mariadb
    end munged
}

no_jobs() { [[ -z $(squeue -h -t R,CG,PD 2>/dev/null) ]]; }

clean() {
    local node
    [[ -e $DIR/parameters ]] || { rm -rf "$DIR"; return 0; }
    for node in $(nodes); do crash "$node"; done
    for node in slurmctld slurmdbd mariadb munged; do kill_ "$node"; done
    rm -rf "$DIR"
}

reconfigure() {
    configure
    scontrol reconfigure
}

status() {
    local daemon pid bad=0 word
    [[ -e $DIR/parameters ]] || fail "nothing was started in $DIR"
    for daemon in munged mariadb slurmdbd slurmctld $(nodes); do
        pid=$(pid_of "$daemon") word=down
        if living "$pid"; then
            word=up
            grep -q '^State:.T' "/proc/$pid/status" 2>/dev/null && word=frozen
        fi
        [[ $word == up ]] || bad=1
        echo "$daemon $word ${pid:-}"
    done
    return "$bad"
}

env() { echo "export SLURM_CONF=$SLURM_CONF"; }

case ${1:-} in
    install) install "${@:2}" ;;
    check | lacks | up | down | clean | status | env | reconfigure | well) "$1" ;;
    start | stop | kill | restart | freeze | thaw)
        [[ ${2:-} ]] || fail "slurm.sh $1 DAEMON"
        pid_file "$2" >/dev/null
        case $1 in
            stop) end "$2" ;;
            kill) kill_ "$2" ;;
            restart) end "$2"; start "$2" ;;
            *) "$1" "$2" ;;
        esac
        ;;
    crash | boot)
        is_node "${2:-}" || fail "slurm.sh $1 NODE, one of: $(nodes | tr '\n' ' ')"
        "$1" "$2"
        ;;
    account) [[ ${3:-} ]] || fail "slurm.sh account USER,... NAME,..."; account "$2" "$3" ;;
    forget) [[ ${2:-} ]] || fail "slurm.sh forget USER,..."; forget "$2" ;;
    *) fail "slurm.sh install | check | up | down | clean | status | env | reconfigure | well, start | stop | kill | restart | freeze | thaw DAEMON, crash | boot NODE, account USER,... NAME,... or forget USER,..." ;;
esac
