"""Jobs that resist their end or obscure how they ended, as plain data: one shell text per job.

NAP stands for a `sleep` with a duration unique to the job: a process that still sleeps that long
afterwards has survived. Every animal stamps `ready` when all its processes exist (see `oracle`).
"""

from typing import NamedTuple

CODE = 3


class StubbornJob(NamedTuple):
    """text: shell text to run before the job is ready. naps: number of processes that sleep then.
    stays: shell text with which the main process waits for its end.
    """

    text: str
    naps: int = 1
    stays: str = "sleep NAP & wait $!; sleep NAP"


_DEAF = "trap '' TERM HUP INT; "

ANIMALS = {
    "ignores SIGTERM": StubbornJob(_DEAF + "sleep NAP &", 2, "while :; do sleep NAP; done"),
    "double-forks": StubbornJob("( setsid sh -c 'sleep NAP & exec sleep NAP' & )", 3),
    "its own session, a cleared environment": StubbornJob("( setsid env -i /bin/sleep NAP & )", 2),
    "everything shed at once": StubbornJob(
        "( setsid env -i /bin/sh -c 'exec 0<&- 1>&- 2>&- 8>&- 9>&-; /bin/sleep NAP & exec /bin/sleep NAP' & )",
        3,
    ),
    "floods its output": StubbornJob("( yes flood NAP & ) ; ( setsid yes flood NAP >&2 & )", 3),
    "its child was killed by the kernel": StubbornJob(
        "sh -c 'kill -SEGV $$'; sh -c 'kill -KILL $$'; sleep NAP &", 2
    ),
    "leaves grandchildren": StubbornJob(
        'sh -c \'sh -c "sleep NAP & sleep NAP & wait" & sh -c "sleep NAP & wait" & sleep 0.2\' &', 4
    ),
    "forks and forks": StubbornJob(
        # each generation starts the next and ends; bounded, in case it ever escapes
        'runner=\'[ $1 -lt 4000 ] || exit 0; setsid sh -c "$runner" x $(($1 + 1)) NAP &\'; export runner; setsid sh -c "$runner" x 0 NAP & sleep NAP &',
        2,
    ),
    "a fork bomb": StubbornJob(
        'bomb=\'[ $1 -ge 5 ] || for i in 1 2; do sh -c "$bomb" x $(($1 + 1)) NAP & done; sleep NAP\'; export bomb; sh -c "$bomb" x 0 NAP &',
        120,
    ),
    "many at once": StubbornJob(
        "n=0; while [ $n -lt 40 ]; do setsid sleep NAP & n=$((n + 1)); done", 41
    ),
    "a stopped tree": StubbornJob(
        "setsid sh -c 'sleep NAP & kill -STOP $! $$; sleep NAP' x NAP &", 3
    ),
    "stops itself": StubbornJob("sleep NAP &", 1, "kill -STOP $$; sleep NAP"),
    "executes itself anew": StubbornJob(
        "sleep NAP &",
        1,
        'again=\'[ $1 -lt 4000 ] && exec sh -c "$again" x $(($1 + 1)) NAP; sleep NAP\'; export again; exec sh -c "$again" x 0 NAP',
    ),
    "children hold its output open": StubbornJob("( setsid sh -c 'exec sleep NAP' >&1 2>&2 & )", 2),
}


def stays(animal: StubbornJob, nap: str) -> str:
    """Return the text of a job that runs until it is stopped."""
    return f"{animal.text}\nstamp ready\n{animal.stays}".replace("NAP", nap)


def ends(animal: StubbornJob, nap: str) -> str:
    """Return the text of a job whose main process ends by itself and leaves its other processes
    behind.
    """
    return f"{animal.text}\nsleep 0.1\nstamp ready\nexit {CODE}".replace("NAP", nap)
