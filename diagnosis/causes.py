"""The closed table of causes: why a run waits, runs or ended, one word for each, what it means,
whose it is and what to do.

The words are what `job why` gives as `cause`. `refining` finds the word of an exit. `diagnosis`
finds the class, the blame and the advice of that word, so that the two never contradict each other.
"""

import signal
from typing import Literal

import msgspec

#: How sure it is. certain: somebody who must know says so. likely: what is known fits, and hardly
#: anything else does. possible: it fits. unknown: what happened is known, and who or what did it is
#: not.
Confidence = Literal["certain", "likely", "possible", "unknown"]
#: As in a diagnosis, and `nobody`: there is nothing to mend.
Whose = Literal["user", "platform", "resource", "unknown", "nobody"]

WHOSE: dict[Whose, str] = {
    "user": "of the job: its program, its input, or what was asked for it",
    "platform": "of the platform, not of the job",
    "resource": "what it needs is not to be had yet",
    "unknown": "whose it is cannot be told",
    "nobody": "nobody's: there is nothing to mend",
}


class Cause(msgspec.Struct, frozen=True):
    """One word. sentence: what it means; todo: what a person can try, the likeliest first;
    excludes: what it is taken for and is not.
    """

    word: str
    whose: Whose
    sentence: str
    todo: tuple[str, ...]
    excludes: tuple[str, ...] = ()


_AGAIN = "Submit it again."
_LOGS = "Read the last lines of its output, then all of it."
_STORY = "Look who or what did it: jobscribe trace JOB"
_ACTIVE = "Look what holds the places: jobscribe job list --active"
_POOL = "Ask for less, or look what the hosts have: jobscribe pool show"
_CHECK = "Look what is wrong with the hosts: jobscribe pool check"
_CLUSTER = "Look what the cluster offers: jobscribe cluster list"
MORE_MEMORY = "give it more memory: a smaller input, fewer runs at once, or a machine or cgroup with a higher limit"

#: What ended.
_ENDED = (
    Cause(
        "completed",
        "nobody",
        "It did what it was to do.",
        ("Fetch its results: jobscribe job logs JOB shows what it wrote.",),
    ),
    Cause(
        "canceled",
        "user",
        "Somebody asked for its end, through this system.",
        ("Submit it again if that was a mistake.",),
        ("a time limit", "its own exit"),
    ),
    Cause(
        "timeLimit",
        "user",
        "It ran as long as its time limit allows, and was ended.",
        (
            "submit it again with a longer --time-limit",
            "Have the program save its state, so that the next run can go on from there.",
        ),
        ("asked for by anyone", "its own exit"),
    ),
    Cause(
        "queueLimit",
        "resource",
        "It waited longer than its queue limit and never started.",
        (
            "Submit it again with a longer queue limit, or without one.",
            "Ask for less, so that there is room for it earlier.",
        ),
        ("asked for by anyone", "a fault of the job: it never started"),
    ),
    Cause(
        "dependency",
        "user",
        "It is to run after another run: it waits for that, or was canceled as that did not end as it asked for.",
        ("Look at the run that it is to run after: jobscribe job why JOB",),
    ),
    Cause(
        "shutdown",
        "platform",
        "It was ended from outside: its machine was shut down, or the keeper of its jobs was told to end.",
        (_AGAIN, _STORY),
        ("canceled by anyone", "a time limit", "its own exit"),
    ),
    Cause(
        "decided",
        "user",
        "Other tasks of it had decided how the attempt ends, so this one was stopped.",
        ("Look which task decided it: jobscribe job tasks JOB",),
        ("a failure of its own",),
    ),
    Cause(
        "lost",
        "platform",
        "How it ended is not known: its machine, or everything that watched it, went away.",
        ("Look whether its output is complete; if not, submit it again.", _STORY),
        ("a failure that the job reported",),
    ),
    Cause(
        "agentStartFailed",
        "platform",
        "The agent that was to run it could not be started, so it never ran.",
        ("Mend what the last failure names, then submit it again.", _STORY),
        ("a fault of the job: it never started",),
    ),
    Cause(
        "startFailed",
        "unknown",
        "It could not be started, and never ran.",
        ("Mend what the sentence names, then submit it again.",),
    ),
    Cause(
        "setupFailed",
        "user",
        "A module that it asked for could not be loaded, or its set-up failed, before its command could begin.",
        (
            "Check the name of the module ('module avail' on the cluster lists them), or the lines of set-up, by what they said.",
        ),
    ),
    Cause(
        "notFound",
        "user",
        "The command, or one that a script calls, was not found.",
        (
            "Check the spelling and PATH; a path in full always works.",
            "Load the module or environment that has the command.",
        ),
    ),
    Cause(
        "notExecutable",
        "user",
        "The command was found but may not be executed.",
        (
            "Make the file executable (chmod +x).",
            "Check its first line (#!), and that its disk is not mounted noexec.",
        ),
    ),
    Cause(
        "wrongArchitecture",
        "user",
        "The program was built for another kind of machine, or is no program at all.",
        (
            "Compare 'file PROGRAM' with 'uname -m' on the machine.",
            "Build it for that machine, or give a script its first line (#!).",
        ),
    ),
    Cause(
        "libraryMissing",
        "user",
        "The program was found, and a shared library that it needs was not.",
        (
            "Load the modules that were loaded when it was built, or set LD_LIBRARY_PATH; 'ldd PROGRAM' lists what is missing.",
        ),
    ),
    Cause(
        "outOfMemory",
        "user",
        "Memory ran out, and the kernel killed a process of it.",
        (MORE_MEMORY,),
        ("canceled by anyone", "a time limit"),
    ),
    Cause(
        "killed",
        "unknown",
        "SIGKILL ended it, which no program can catch; this system did not send it.",
        (
            "Look for who sent it: an operator, a guard of the machine, its batch system or engine.",
            "Submit it again; if it ends so again, ask the operator to look into the kernel's log (dmesg).",
        ),
        ("sent by this system", "canceled by anyone", "a time limit"),
    ),
    Cause(
        "terminated",
        "unknown",
        "SIGTERM asked it to end; this system did not send it.",
        (
            "Look whether it, or a script around it, sends that signal itself, or whether its machine was being shut down.",
            _AGAIN,
        ),
        ("sent by this system", "canceled by anyone", "a time limit"),
    ),
    Cause(
        "interrupted",
        "unknown",
        "SIGINT or SIGQUIT, which Ctrl-C and Ctrl-\\ send, ended it; this system did not send it.",
        ("Look whether it, or a script around it, sends that signal itself.", _AGAIN),
        ("canceled by anyone",),
    ),
    Cause(
        "hangup",
        "unknown",
        "SIGHUP ended it: a terminal or a session that it belonged to was closed.",
        (
            "Look whether it starts a session of its own, as ssh or screen do; 'nohup' in front of the command ignores the signal.",
            _AGAIN,
        ),
        ("canceled by anyone",),
    ),
    Cause(
        "brokenPipe",
        "user",
        "It wrote to a pipe or connection that nobody read from any more.",
        (
            "Look at what reads from it: the command behind the pipe ('head' does that), or the other task, ended first.",
        ),
    ),
    Cause(
        "crash",
        "user",
        "The kernel ended it for what its program did: a bad address, a bad instruction, bad arithmetic, or abort().",
        (
            "Read what it wrote last, then run it with a smaller input and a build that checks bounds.",
            "Raise the limit of the stack (ulimit -s), where large arrays lie on it.",
        ),
        ("canceled by anyone", "a time limit"),
    ),
    Cause(
        "cpuLimit",
        "user",
        "It used more CPU time than a limit of one process (ulimit -t) allows.",
        (
            "Look for 'ulimit -t' in the job and raise it there; if there is none, ask the operator for a higher limit.",
            "Make it do less in one process.",
        ),
        ("the time limit of the run",),
    ),
    Cause(
        "fileSizeLimit",
        "user",
        "It wrote a longer file than a limit of one process (ulimit -f) allows.",
        (
            "Look for 'ulimit -f' in the job and raise it there; if there is none, ask the operator for a higher limit.",
            "Write shorter files.",
        ),
        ("a full disk",),
    ),
    Cause(
        "memoryRefused",
        "user",
        "It asked for more memory than it could have, and was refused; nothing was killed for that.",
        (
            "Look for 'ulimit -v' in the job and raise it there: with such a limit, more memory for the job does not help.",
            "Give it more memory if there is no such limit, or make it need less.",
        ),
        ("a process that the kernel killed",),
    ),
    Cause(
        "commandTimeout",
        "user",
        "It exited with 124, as 'timeout' does when the command that it runs takes too long.",
        (
            "Look for 'timeout' in the job, and give it more time there.",
            "Look why that command took so long.",
        ),
        ("the time limit of the run",),
    ),
    Cause(
        "signal",
        "unknown",
        "A signal ended it that usually means nothing by itself.",
        (
            "Look whether the program, or something beside it, sends this signal; Slurm sends SIGUSR1 before a time limit, if asked to.",
        ),
    ),
    Cause(
        "diskFull",
        "platform",
        "A disk that it wrote to was full.",
        (
            "Find which one is full: 'df -h' and 'df -i' on its machine; remove what is not needed, or write to another one.",
        ),
        ("a quota",),
    ),
    Cause(
        "quota",
        "user",
        "Its user has used up the disk quota there.",
        (
            "Remove what is not needed any more ('quota -s' shows what is used), or ask the operator for more.",
        ),
        ("a full disk",),
    ),
    Cause(
        "traceback",
        "user",
        "A Python program ended with an exception that nothing caught.",
        ("Read the exception and the lines of the program that it names.",),
        ("canceled by anyone", "a time limit"),
    ),
    Cause(
        "usage",
        "user",
        "The command did not understand its arguments.",
        (
            "Compare its arguments with what its --help says; quotes and blanks may be lost on the way through a shell.",
        ),
    ),
    Cause(
        "launcher",
        "unknown",
        "It exited with 255, as ssh and MPI launchers do that cannot reach something; -1 becomes 255, too.",
        ("Look for what ssh, srun or mpirun wrote, and try the same connection by hand.",),
    ),
    Cause(
        "exit",
        "unknown",
        "It ended by itself, and said so by its exit code; what that code means only its program knows.",
        (_LOGS,),
        ("canceled by anyone", "a time limit"),
    ),
    Cause(
        "slurmCanceled",
        "unknown",
        "Somebody canceled its job in Slurm, not here; who it was is not known.",
        (
            "Ask who canceled it, and why, before you submit it again: 'sacct -j ID' on the cluster may name who.",
        ),
        ("canceled by anyone here", "a time limit", "its own exit"),
    ),
    Cause(
        "slurmCanceledByUser",
        "user",
        "Its own user canceled its job in Slurm, not here.",
        ("Submit it again if that was a mistake.",),
        ("canceled by anyone here", "a time limit", "its own exit"),
    ),
    Cause(
        "slurmCanceledByOther",
        "platform",
        "Somebody else than its user canceled its job in Slurm: an operator of the cluster.",
        ("Ask the operators of the cluster why, before you submit it again.",),
        ("canceled by anyone here", "a time limit", "its own exit", "a fault of its program"),
    ),
    Cause(
        "nodeFail",
        "platform",
        "A node of the cluster failed under it.",
        (
            "Submit it again; it may come to other nodes.",
            "Tell the operators of the cluster which node it was, if it happens again.",
            "Look there how long a login takes where its script had not begun: 'time bash -l -c true'.",
        ),
        ("canceled by anyone here", "a time limit", "its own exit"),
    ),
    Cause(
        "launchFailed",
        "platform",
        "The cluster could not boot its nodes, or could not launch it there.",
        (
            "Submit it again; it may come to other nodes.",
            "Tell the operators of the cluster which node it was, if it happens again.",
        ),
        ("canceled by anyone here", "a time limit", "its own exit"),
    ),
    Cause(
        "preempted",
        "platform",
        "Slurm took its nodes away for a job that goes before it.",
        (
            _AGAIN,
            "Ask for a partition or QOS that is not preempted, or have the program save its state when it is told to end.",
        ),
        ("canceled by anyone here", "a time limit", "its own exit"),
    ),
    Cause(
        "deadline",
        "user",
        "It could not have ended before its deadline any more, and Slurm removed it.",
        ("Submit it again with a later deadline, or with a shorter time limit.",),
        ("canceled by anyone here", "its own exit"),
    ),
    Cause(
        "purged",
        "nobody",
        "It is over, and its files were removed since.",
        ("Submit it again to have its files back.",),
    ),
    Cause(
        "missing", "user", "There is no such run.", ("Look for the right one: jobscribe job list",)
    ),
)

#: What waits or runs: the words of `queueState`, and `running`.
_LIVE = (
    Cause(
        "running",
        "nobody",
        "Its processes run.",
        ("Follow what it writes: jobscribe job logs -f JOB",),
    ),
    Cause(
        "stopping",
        "nobody",
        "It is coming to its end.",
        ("Wait: what does not end by itself is killed after its grace time.",),
    ),
    Cause(
        "ending",
        "nobody",
        "Its command has ended; something of it is still there, and its own exit decides the result.",
        ("Wait: it is over when nothing of it is left.",),
        ("running: its time limit is not counted any more",),
    ),
    Cause(
        "debug_hold",
        "user",
        "It failed, and is kept for somebody to look at.",
        ("Enter it: jobscribe job shell JOB", "Give back what it holds: jobscribe job release JOB"),
    ),
    Cause(
        "retry_wait",
        "platform",
        "An attempt failed, and another one follows by itself.",
        ("Wait, or take it back: jobscribe job cancel JOB",),
    ),
    Cause(
        "starting",
        "nobody",
        "Its agent was asked to start it; an image may have to be pulled before.",
        ("Wait; if it takes minutes, look where it stands: jobscribe job tasks JOB",),
        ("a fault of the job: it waits",),
    ),
    Cause(
        "agent",
        "platform",
        "Its agent, which starts it, is not there yet.",
        ("Wait; it is tried again by itself. What was tried: jobscribe trace JOB",),
        ("a fault of the job: it waits",),
    ),
    Cause(
        "op_slot",
        "resource",
        "Other runs of the same user have the places that one user may have.",
        (_ACTIVE, "Cancel what is not needed: jobscribe job cancel OTHER"),
        ("a fault of the job: it waits",),
    ),
    Cause(
        "cpu_slot",
        "resource",
        "Other runs have all places of the machine or cluster.",
        (_ACTIVE, "Wait: places are given in the order of submission."),
        ("a fault of the job: it waits",),
    ),
    Cause(
        "array_slot",
        "resource",
        "As many runs of its array are under way as were to be at once.",
        ("Wait for those before it, or submit the array with more at once.",),
        ("a fault of the job: it waits",),
    ),
    Cause(
        "run_dir",
        "resource",
        "The earlier run in the same directory has not ended yet.",
        ("Wait: it is being ended. What is left of it: jobscribe job list --active",),
        ("a fault of the job: it waits",),
    ),
    Cause(
        "resources",
        "resource",
        "No host has what it asks for free at the moment.",
        (_POOL, _ACTIVE),
        ("a fault of the job: it waits",),
    ),
    Cause(
        "ports",
        "resource",
        "Ports that it asks for are in use, or are being looked at.",
        ("Leave the beginning of port ranges out, so that free ones are found.",),
        ("a fault of the job: it waits",),
    ),
    Cause(
        "no_host",
        "user",
        "No host or cluster that there is may take it.",
        (_POOL, _CLUSTER, "Cancel it, and submit it again asking for what there is."),
        ("a failure: it waits",),
    ),
    Cause(
        "host_down",
        "platform",
        "No host that it may go to can be asked.",
        (_CHECK, "Tell the operator which host is down."),
        ("a fault of the job: it waits",),
    ),
    Cause(
        "agent_memory",
        "resource",
        "Its host has no memory left for another agent.",
        (
            _ACTIVE,
            "Wait until an agent there has gone, or have the operator raise the host's memory for agents.",
        ),
        ("a fault of the job: it waits",),
    ),
    Cause(
        "sign_in",
        "user",
        "Its user has to sign in to the cluster first.",
        ("Sign in: jobscribe login CLUSTER",),
        ("a failure: it goes on by itself after the sign-in",),
    ),
    Cause(
        "slurm",
        "resource",
        "It is in Slurm's queue, or on its way there.",
        ("Wait, or ask for less: smaller and shorter jobs start earlier.", _CLUSTER),
        ("a fault of the job: it waits",),
    ),
)

#: All words. The order is that of a page: ends first.
CAUSES: dict[str, Cause] = {cause.word: cause for cause in (*_ENDED, *_LIVE)}

#: Signals by the word that they are, whoever sent them.
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
#: Why we stopped it, and what Slurm calls ends of its own doing.
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
#: Ends of a run that are no exit of its own.
BY_REASON = {
    "cancel": "canceled",
    "timeLimit": "timeLimit",
    "queueLimit": "queueLimit",
    "dependency": "dependency",
    "shutdown": "shutdown",
    "lost": "lost",
    "agentStartFailed": "agentStartFailed",
}
