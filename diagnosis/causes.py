"""The closed table of causes: why a run waits, runs or has ended. Each cause has an identifier, a
meaning, a responsible side and advice.

`job why` shows the identifier as `cause`. `classification` finds the cause of an exit. `exit_table`
takes type, blame and advice from the same cause, so that the two never contradict each other.
"""

import signal
from typing import Literal

import msgspec

#: Confidence of a cause. certain: an authoritative source reported it. likely: the facts fit, and
#: hardly any other cause fits. possible: the facts fit. unknown: the event is known, but its sender
#: is not.
Confidence = Literal["certain", "likely", "possible", "unknown"]
#: The responsible side as in a diagnosis, or `nobody` if no repair is needed.
Whose = Literal["user", "platform", "resource", "unknown", "nobody"]

#: Sub-states of a pending, ending or stopping run: the reason to wait, or the current step.
QueueState = Literal[
    "dependency",
    "agent",
    "op_slot",
    "run_dir",
    "cpu_slot",
    "array_slot",
    "user_limit",
    "resources",
    "ports",
    "retry_wait",
    "starting",
    "stopping",
    "ending",
    "debug_hold",
    "no_host",
    "drained",
    "host_down",
    "agent_memory",
    "sign_in",
    "slurm",
]

WHOSE: dict[Whose, str] = {
    "user": "caused by the job: its program, its input, or its request",
    "platform": "caused by the platform, not the job",
    "resource": "a resource that is not available yet",
    "unknown": "responsible side unknown",
    "nobody": "nothing to repair",
}


ACTIVE_COMMAND = "jobscribe job list --active   # shows running and waiting jobs"


class Cause(msgspec.Struct, frozen=True):
    """One cause. word: its identifier. whose: responsible side. sentence: meaning. todo: advice,
    most likely to help first. excludes: causes that look similar but are ruled out.

    commands: of a reason to wait: commands that show more about it, the most useful one first. JOB
    and SIMULATION stand for the ids of the run.
    """

    word: str
    whose: Whose
    sentence: str
    todo: tuple[str, ...]
    excludes: tuple[str, ...] = ()
    commands: tuple[str, ...] = (ACTIVE_COMMAND,)


_AGAIN = "Submit it again."
_LOGS = "Read the last lines of its output, then all of it."
_EVENTS = "Look for the event that caused it: jobscribe trace JOB"
_ACTIVE = "List the active runs: jobscribe job list --active"
_POOL = "Ask for less, or look what the hosts have: jobscribe pool show"
_CHECK = "Check the hosts: jobscribe pool check"
_CLUSTER = "Look what the cluster offers: jobscribe cluster list"
MORE_MEMORY = "give it more memory: a smaller input, fewer runs at once, or a machine or cgroup with a higher limit"

#: Ended runs.
_ENDED = (
    Cause(
        "completed",
        "nobody",
        "The run succeeded.",
        ("Fetch its results: jobscribe job logs JOB shows its output.",),
    ),
    Cause(
        "canceled",
        "user",
        "A user canceled the run through jobscribe.",
        ("Submit it again if that was a mistake.",),
        ("a time limit", "its own exit"),
    ),
    Cause(
        "timeLimit",
        "user",
        "The run reached its time limit and was stopped.",
        (
            "submit it again with a longer --time-limit",
            "Have the program save its state, so that the next run can continue.",
        ),
        ("canceled by anyone", "its own exit"),
    ),
    Cause(
        "queueLimit",
        "resource",
        "The run reached its queue limit and never started.",
        (
            "Submit it again with a longer queue limit, or without one.",
            "Ask for less, so that it fits earlier.",
        ),
        ("canceled by anyone", "a fault of the job: it never started"),
    ),
    Cause(
        "dependency",
        "user",
        "The run depends on another run, which has not ended, or did not end as required.",
        ("Look at the other run: jobscribe job why OTHER",),
    ),
    Cause(
        "shutdown",
        "platform",
        "The run was ended by a shutdown of its machine, or by a stop of its keeper.",
        (_AGAIN, _EVENTS),
        ("canceled by anyone", "a time limit", "its own exit"),
    ),
    Cause(
        "decided",
        "user",
        "The result of the attempt was already decided by other tasks, so this task was stopped.",
        ("Look which task decided it: jobscribe job tasks JOB",),
        ("a failure of its own",),
    ),
    Cause(
        "lost",
        "platform",
        "The exit status is unknown: its machine, or every process that watched it, went away.",
        ("Check whether its output is complete; if not, submit it again.", _EVENTS),
        ("a failure that the job reported",),
    ),
    Cause(
        "agentStartFailed",
        "platform",
        "The agent of the run did not start, so the run never started.",
        ("Fix the last failure shown, then submit it again.", _EVENTS),
        ("a fault of the job: it never started",),
    ),
    Cause(
        "startFailed",
        "unknown",
        "The start of the run failed; it never ran.",
        ("Fix the reported problem, then submit it again.",),
    ),
    Cause(
        "setupFailed",
        "user",
        "A requested module could not be loaded, or the set-up failed, before the command started.",
        (
            "Check the module name ('module avail' on the cluster lists them), or the set-up lines; the output has their errors.",
        ),
    ),
    Cause(
        "notFound",
        "user",
        "The command, or a command that its script calls, was not found.",
        (
            "Check the spelling and PATH; an absolute path always works.",
            "Load the module or environment that has the command.",
        ),
    ),
    Cause(
        "notExecutable",
        "user",
        "The command was found but cannot be executed.",
        (
            "Make the file executable (chmod +x).",
            "Check its first line (#!), and that its disk is not mounted noexec.",
        ),
    ),
    Cause(
        "wrongArchitecture",
        "user",
        "The program was built for another processor type, or is not a program.",
        (
            "Compare 'file PROGRAM' with 'uname -m' on the machine.",
            "Build it for that machine, or give a script its first line (#!).",
        ),
    ),
    Cause(
        "libraryMissing",
        "user",
        "The program was found, but not a shared library that it needs.",
        (
            "Load the modules that were loaded for its build, or set LD_LIBRARY_PATH; 'ldd PROGRAM' lists missing libraries.",
        ),
    ),
    Cause(
        "outOfMemory",
        "user",
        "Memory ran out, and the kernel killed a process of the job.",
        (MORE_MEMORY,),
        ("canceled by anyone", "a time limit"),
    ),
    Cause(
        "killed",
        "unknown",
        "Killed by SIGKILL (not sent by jobscribe); no program can catch SIGKILL.",
        (
            "Look for the sender: an operator, a guard of the machine, its batch system or engine.",
            "Submit it again; if it happens again, ask the operator to check the kernel's log (dmesg).",
        ),
        ("sent by jobscribe", "canceled by anyone", "a time limit"),
    ),
    Cause(
        "terminated",
        "unknown",
        "Ended by SIGTERM (not sent by jobscribe).",
        (
            "Check whether the program, or a script around it, sends SIGTERM, or whether its machine was being shut down.",
            _AGAIN,
        ),
        ("sent by jobscribe", "canceled by anyone", "a time limit"),
    ),
    Cause(
        "interrupted",
        "unknown",
        "Ended by SIGINT or SIGQUIT, as sent by Ctrl-C and Ctrl-\\ (not sent by jobscribe).",
        ("Check whether the program, or a script around it, sends that signal.", _AGAIN),
        ("canceled by anyone",),
    ),
    Cause(
        "hangup",
        "unknown",
        "Ended by SIGHUP: its terminal or session was closed.",
        (
            "Check whether it starts a session of its own, as ssh or screen do; 'nohup' before the command ignores SIGHUP.",
            _AGAIN,
        ),
        ("canceled by anyone",),
    ),
    Cause(
        "brokenPipe",
        "user",
        "It wrote to a pipe or connection that no process read from any more.",
        (
            "Look at the reader: the command after the pipe (such as 'head'), or the other task, ended first.",
        ),
    ),
    Cause(
        "crash",
        "user",
        "The program crashed: a bad address, a bad instruction, bad arithmetic, or abort().",
        (
            "Read its last output, then run it with a smaller input and a build that checks bounds.",
            "Raise the stack limit (ulimit -s) if it has large arrays on the stack.",
        ),
        ("canceled by anyone", "a time limit"),
    ),
    Cause(
        "cpuLimit",
        "user",
        "A process used more CPU time than its limit (ulimit -t).",
        (
            "Look for 'ulimit -t' in the job and raise it there; if there is none, ask the operator for a higher limit.",
            "Make one process do less.",
        ),
        ("the time limit of the run",),
    ),
    Cause(
        "fileSizeLimit",
        "user",
        "A process wrote a longer file than its limit (ulimit -f).",
        (
            "Look for 'ulimit -f' in the job and raise it there; if there is none, ask the operator for a higher limit.",
            "Write shorter files.",
        ),
        ("a full disk",),
    ),
    Cause(
        "memoryRefused",
        "user",
        "A request for memory was refused; no process was killed.",
        (
            "Look for 'ulimit -v' in the job and raise it there: with such a limit, more memory for the job does not help.",
            "Give it more memory if there is no such limit, or make it need less.",
        ),
        ("a process that the kernel killed",),
    ),
    Cause(
        "commandTimeout",
        "user",
        "Exit code 124, as from 'timeout' when its command takes too long.",
        (
            "Look for 'timeout' in the job, and give it more time there.",
            "Look why that command took so long.",
        ),
        ("the time limit of the run",),
    ),
    Cause(
        "signal",
        "unknown",
        "Ended by a signal without a usual meaning.",
        (
            "Check whether the program, or another process, sends this signal; Slurm sends SIGUSR1 before a time limit on request.",
        ),
    ),
    Cause(
        "diskFull",
        "platform",
        "A disk that it wrote to was full.",
        (
            "Find the full disk: 'df -h' and 'df -i' on its machine; remove unneeded files, or write to another disk.",
        ),
        ("a quota",),
    ),
    Cause(
        "quota",
        "user",
        "The user's disk quota was used up.",
        ("Remove unneeded files ('quota -s' shows the usage), or ask the operator for more.",),
        ("a full disk",),
    ),
    Cause(
        "traceback",
        "user",
        "A Python program ended with an uncaught exception.",
        ("Read the exception and the program lines it names.",),
        ("canceled by anyone", "a time limit"),
    ),
    Cause(
        "usage",
        "user",
        "The command did not accept its arguments.",
        ("Compare its arguments with its --help; a shell may remove quotes and blanks.",),
    ),
    Cause(
        "launcher",
        "unknown",
        "Exit code 255, as from ssh and MPI launchers that cannot connect; -1 becomes 255, too.",
        ("Look for errors of ssh, srun or mpirun, and try the same connection by hand.",),
    ),
    Cause(
        "exit",
        "unknown",
        "It ended with an exit code that only its program can explain.",
        (_LOGS,),
        ("canceled by anyone", "a time limit"),
    ),
    Cause(
        "slurmCanceled",
        "unknown",
        "The job was canceled in Slurm, not here, by an unknown user.",
        (
            "Ask who canceled it, and why, before you submit it again: 'sacct -j ID' on the cluster may name the user.",
        ),
        ("canceled by anyone here", "a time limit", "its own exit"),
    ),
    Cause(
        "slurmCanceledByUser",
        "user",
        "Its own user canceled the job in Slurm, not here.",
        ("Submit it again if that was a mistake.",),
        ("canceled by anyone here", "a time limit", "its own exit"),
    ),
    Cause(
        "slurmCanceledByOther",
        "platform",
        "Another user canceled the job in Slurm: an operator of the cluster.",
        ("Ask the operators of the cluster why, before you submit it again.",),
        ("canceled by anyone here", "a time limit", "its own exit", "a fault of its program"),
    ),
    Cause(
        "nodeFail",
        "platform",
        "A node of the cluster failed under the job.",
        (
            "Submit it again; it may get other nodes.",
            "Tell the operators of the cluster the node's name if it happens again.",
            "Check how long a login takes there if its script had not begun: 'time bash -l -c true'.",
        ),
        ("canceled by anyone here", "a time limit", "its own exit"),
    ),
    Cause(
        "launchFailed",
        "platform",
        "The cluster could not boot its nodes, or could not launch it there.",
        (
            "Submit it again; it may get other nodes.",
            "Tell the operators of the cluster the node's name if it happens again.",
        ),
        ("canceled by anyone here", "a time limit", "its own exit"),
    ),
    Cause(
        "preempted",
        "platform",
        "Slurm preempted it: a job with higher priority took its nodes.",
        (
            _AGAIN,
            "Ask for a partition or QOS without preemption, or have the program save its state when it is told to end.",
        ),
        ("canceled by anyone here", "a time limit", "its own exit"),
    ),
    Cause(
        "deadline",
        "user",
        "It could no longer end before its deadline, so Slurm removed it.",
        ("Submit it again with a later deadline, or with a shorter time limit.",),
        ("canceled by anyone here", "its own exit"),
    ),
    Cause(
        "purged",
        "nobody",
        "The run ended, and its files were removed later.",
        ("Submit it again to have its files back.",),
    ),
    Cause(
        "missing", "user", "There is no such run.", ("Look for the right one: jobscribe job list",)
    ),
)

#: Waiting and running runs: each `QueueState`, and `running`.
_LIVE = (
    Cause(
        "running",
        "nobody",
        "Its processes are running.",
        ("Follow its output: jobscribe job logs -f JOB",),
    ),
    Cause(
        "stopping",
        "nobody",
        "The run is being stopped.",
        ("Wait: processes that do not end are killed after the grace time.",),
    ),
    Cause(
        "ending",
        "nobody",
        "Its command has ended, other processes are still alive; the command's exit decides the result.",
        ("Wait: the run ends with its last process.",),
        ("running: its time limit no longer counts",),
    ),
    Cause(
        "debug_hold",
        "user",
        "A task failed and is held for debugging.",
        ("Enter it: jobscribe job shell JOB", "Release its resources: jobscribe job release JOB"),
    ),
    Cause(
        "retry_wait",
        "platform",
        "An attempt failed, and the next one starts by itself.",
        ("Wait, or cancel it: jobscribe job cancel JOB",),
    ),
    Cause(
        "starting",
        "nobody",
        "Its agent was told to start it; an image may have to be pulled first.",
        ("Wait; if it takes minutes, look at its tasks: jobscribe job tasks JOB",),
        ("a fault of the job: it waits",),
        ("jobscribe job tasks JOB   # shows the state of each task",),
    ),
    Cause(
        "agent",
        "platform",
        "Its agent has not started yet.",
        ("Wait: the start is retried. Previous tries: jobscribe trace JOB",),
        ("a fault of the job: it waits",),
        ("jobscribe trace JOB   # shows the attempts to start its agent, and their errors",),
    ),
    Cause(
        "op_slot",
        "resource",
        "Other runs of the same user fill the user's limit of concurrent runs.",
        (_ACTIVE, "Cancel unneeded runs: jobscribe job cancel OTHER"),
        ("a fault of the job: it waits",),
    ),
    Cause(
        "cpu_slot",
        "resource",
        "Other runs fill the limit of concurrent runs of the machine or cluster.",
        (
            _ACTIVE,
            "Wait: users take turns, and whoever used less recently goes first.",
        ),
        ("a fault of the job: it waits",),
    ),
    Cause(
        "user_limit",
        "resource",
        "Its user has as many running runs as the site allows.",
        (_ACTIVE, "Wait for your earlier runs, or ask the operator for a higher limit."),
        ("a fault of the job: it waits",),
    ),
    Cause(
        "array_slot",
        "resource",
        "Its array runs as many runs at once as it may.",
        ("Wait for earlier runs, or submit the array with more at once.",),
        ("a fault of the job: it waits",),
        ("jobscribe job group SIMULATION   # shows the state of its array", ACTIVE_COMMAND),
    ),
    Cause(
        "run_dir",
        "resource",
        "An earlier run in the same directory has not ended yet.",
        ("Wait: the earlier run is being ended. Active runs: jobscribe job list --active",),
        ("a fault of the job: it waits",),
    ),
    Cause(
        "resources",
        "resource",
        "No host has the requested resources free at the moment.",
        (_POOL, _ACTIVE),
        ("a fault of the job: it waits",),
        ("jobscribe pool show   # shows total and used resources of the hosts", ACTIVE_COMMAND),
    ),
    Cause(
        "ports",
        "resource",
        "Requested ports are in use, or are being checked.",
        ("Leave out the start of port ranges, so that jobscribe chooses free ports.",),
        ("a fault of the job: it waits",),
        ("jobscribe pool show   # shows total and used resources of the hosts", ACTIVE_COMMAND),
    ),
    Cause(
        "no_host",
        "user",
        "No existing host or cluster can take it.",
        (_POOL, _CLUSTER, "Cancel it, and submit it again with a request that fits."),
        ("a failure: it waits",),
        (
            "jobscribe pool show   # lists the hosts",
            "jobscribe cluster list   # lists the clusters",
            "jobscribe job cancel JOB   # then submit it again with a smaller request",
        ),
    ),
    Cause(
        "drained",
        "platform",
        "The site or its hosts start no new runs, for maintenance.",
        ("Wait: it starts when the drain is over.", "Ask the operator when that will be."),
        ("a fault of the job: it waits",),
        (ACTIVE_COMMAND,),
    ),
    Cause(
        "host_down",
        "platform",
        "No host for it can be reached.",
        (_CHECK, "Tell the operator which host is down."),
        ("a fault of the job: it waits",),
        ("jobscribe pool check   # shows the faults of the hosts",),
    ),
    Cause(
        "agent_memory",
        "resource",
        "Its host has no memory left for another agent.",
        (
            _ACTIVE,
            "Wait until an agent there has ended, or ask the operator to raise the host's memory for agents.",
        ),
        ("a fault of the job: it waits",),
    ),
    Cause(
        "sign_in",
        "user",
        "Its user must sign in to the cluster first.",
        ("Sign in: jobscribe login CLUSTER",),
        ("a failure: it continues by itself after the sign-in",),
    ),
    Cause(
        "slurm",
        "resource",
        "It is in Slurm's queue, or on its way there.",
        ("Wait, or ask for less: smaller and shorter jobs start earlier.", _CLUSTER),
        ("a fault of the job: it waits",),
    ),
)

#: All causes; ended runs first, which is the order in the documentation.
CAUSES: dict[str, Cause] = {cause.word: cause for cause in (*_ENDED, *_LIVE)}

#: Causes by signal, for any sender.
BY_SIGNAL: dict[int, str] = {
    signal.SIGHUP: "hangup",
    signal.SIGINT: "interrupted",
    signal.SIGQUIT: "interrupted",
    signal.SIGKILL: "killed",
    signal.SIGTERM: "terminated",
    signal.SIGPIPE: "brokenPipe",
    signal.SIGXCPU: "cpuLimit",
    signal.SIGXFSZ: "fileSizeLimit",
    **dict.fromkeys(
        (
            signal.SIGSEGV,
            signal.SIGBUS,
            signal.SIGILL,
            signal.SIGFPE,
            signal.SIGABRT,
            signal.SIGTRAP,
            signal.SIGSYS,
        ),
        "crash",
    ),
}
#: Causes by jobscribe's own stop reason, and by Slurm's state for runs that Slurm ended.
BY_STOP = {
    "cancel": "canceled",
    "timeLimit": "timeLimit",
    "queueLimit": "queueLimit",
    "shutdown": "shutdown",
    "lost": "lost",
    "decided": "decided",
}
BY_SLURM = {
    "CANCELLED": "slurmCanceled",
    "NODE_FAIL": "nodeFail",
    "BOOT_FAIL": "launchFailed",
    "LAUNCH_FAILED": "launchFailed",
    "RECONFIG_FAIL": "launchFailed",
    "PREEMPTED": "preempted",
    "REVOKED": "preempted",
    "DEADLINE": "deadline",
    "OUT_OF_MEMORY": "outOfMemory",
}
#: Causes by end reason of a run, for ends without an exit of its own.
BY_REASON = {
    "cancel": "canceled",
    "timeLimit": "timeLimit",
    "queueLimit": "queueLimit",
    "dependency": "dependency",
    "shutdown": "shutdown",
    "lost": "lost",
    "agentStartFailed": "agentStartFailed",
}
