"""The tree of commands as a table, and a click group that loads a command's module when the command
is used, not before.

`jobscribe --help` and `jobscribe job --help` are printed from the table alone; nothing here may
import a command's module, nor anything that only some commands need.
"""

import importlib

import click

from .session.common_options import common_options

#: name -> (module, function or group in it, one line of help). "" for the module: a group below.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": (
        "services.up",
        "up",
        "Start supervisor and front end for this user: development mode, its own secret.",
    ),
    "supervisor": (
        "services.up",
        "supervisor",
        "Start a supervisor with a configured secret (for services).",
    ),
    "server": ("services.up", "server", "Start a front end for browsers (for services)."),
    "agent": (
        "",
        "agent",
        "Show agents and what they log (with --keeper-fd: start one; keepers do this).",
    ),
    "keeper": ("agent_entry", "keeper", "Start a keeper (drivers do this)."),
    "run": ("run", "run", "Submit a command, follow its output, exit with its code."),
    "job": ("", "job", "Submit, watch and steer jobs."),
    "login": ("login", "login", "Sign in to a cluster, so that runs can go there as yourself."),
    "logout": ("login", "logout", "Sign out of a cluster; jobs that Slurm has go on."),
    "trace": ("trace.command", "trace", "Show the whole way of a job, op or request."),
    "explain-exit": ("explain_exit", "explain_exit", "Explain an exit code, a signal, or a cause."),
    "health": (
        "health",
        "health",
        "Say whether all is well with the supervisor, and if not, what to do.",
    ),
    "config": ("", "config", "Show and check the configuration."),
    "pool": ("", "pool", "Show and check the hosts of container drivers."),
    "cluster": ("", "cluster", "Show the clusters that runs can go to."),
    "notify": ("", "notify", "Show, test and hurry those who are told when runs change."),
    "driver": ("", "driver", "Check what starts runs."),
    "db": ("", "db", "Check, mend, shorten, copy and read the event store."),
    "doctor": (
        "doctor.command",
        "doctor",
        "Look at machine, user and installation: what will stand in the way of jobs.",
    ),
    "bundle": (
        "bundle.command",
        "bundle",
        "Put all that is known of one job into one archive, without secrets.",
    ),
    "install-units": (
        "install_units.command",
        "install_units",
        "Write systemd's units for this installation, after showing them.",
    ),
    "demo": (
        "demo.command",
        "demo",
        "Run a real computation from submission to result, in a fresh root.",
    ),
}

SUBCOMMANDS: dict[str, dict[str, tuple[str, str, str]]] = {
    "job": {
        "submit": (
            "job.submit",
            "submit",
            "Submit a command, many, or a job file; print the computeJids and return.",
        ),
        "lint": ("job.lint", "lint", "Check job files, without a supervisor."),
        "list": ("job.status", "list_jobs", "List jobs, newest change first."),
        "status": ("job.status", "status", "Show how jobs stand."),
        "tasks": ("job.tasks", "tasks", "Show the tasks and attempts of a job."),
        "logs": ("job.logs", "logs", "Print what a job, or one task of it, wrote."),
        "files": ("job.files", "files", "List the files in the run directory of a job."),
        "get": (
            "job.files",
            "get",
            "Copy files from the run directory of a job into a folder here.",
        ),
        "shell": ("job.shell", "shell", "Enter a task: a shell in its directory and environment."),
        "release": ("job.tasks", "release", "End the debugging of tasks that failed and are kept."),
        "cancel": ("job.cancel", "cancel", "Cancel jobs."),
        "metrics": (
            "job.metrics",
            "metrics",
            "Show what the tasks of a job take: processors, memory, disks, GPUs.",
        ),
        "why": ("job.why", "why", "Explain why a job waits, runs, or ended as it did."),
        "group": ("job.group", "group", "Show how the runs of an array or simulation stand."),
        "wait": ("job.cancel", "wait", "Wait for jobs; exit with the job's code."),
        "exits": (
            "job.exits",
            "exits",
            "List what exit codes and signals mean, from the table that ships.",
        ),
    },
    "config": {
        "show": ("config", "show", "Show every setting and where its value comes from."),
        "check": ("config", "check", "Say whether a supervisor may start with this configuration."),
    },
    "pool": {
        "show": ("pool", "show", "Show the hosts: up or down, and what is used of them."),
        "check": ("pool", "check", "Use each host, and say what is wrong with it."),
    },
    "agent": {
        "list": (
            "agent",
            "list_agents",
            "Show your agents: how each stands, its jobs, where its log lies.",
        ),
        "logs": ("agent", "agent_logs", "Print the log of an agent, or of its keeper."),
        "stop": ("agent", "stop_agents", "End agents that have no runs, and their keepers."),
    },
    "cluster": {
        "list": ("cluster", "list_clusters", "Show the clusters: defaults, limits, partitions."),
    },
    "notify": {
        "list": (
            "notify",
            "list_targets",
            "Show who is told when runs change, and how each stands.",
        ),
        "test": ("notify", "test", "Send a target a message about nothing, and show its answer."),
        "retry": ("notify", "retry", "Try at once what waits for a target."),
    },
    "driver": {
        "check": (
            "driver",
            "check",
            "Use the clusters of a driver, and say what is wrong with them.",
        ),
    },
    "db": {
        "check": ("db.inspection", "check", "Verify every event, checksum and record."),
        "rebuild": (
            "db.inspection",
            "rebuild",
            "Write all records and the index anew from the log.",
        ),
        "repair": ("db.maintenance", "repair", "Say what is damaged, and keep what is whole."),
        "compact": ("db.maintenance", "compact", "Make the log shorter: fold what is long over."),
        "backup": ("db.maintenance", "backup", "Copy the store, while the supervisor runs."),
        "restore": ("db.maintenance", "restore", "Put a backup in the place of the store."),
        "init": ("db.root", "init", "Begin an empty log where the log is lost."),
        "adopt": ("db.root", "adopt", "Make a copied root a root of its own."),
        "story": (
            "db.inspection",
            "story",
            "Tell a job's story from the log; needs no supervisor.",
        ),
        "export": ("db.inspection", "export", "Write all events as JSON lines."),
    },
}


class LazyGroup(click.Group):
    """A group whose commands are rows of a table."""

    def __init__(self, table: dict[str, tuple[str, str, str]], **attributes: object) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]
        self._table = table

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # who was deployed earlier starts an agent by this name: nobody's business here
        if (
            self.name == "agent"
            and args
            and args[0].startswith("-")
            and args[0] not in ("--help", "-h")
            and not set(args) & {*self._table}
        ):
            from .agent_entry import become

            become("jobscribe.agent", tuple(args))
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module, name, about = self._table[cmd_name]
        if not module:
            return _group(cmd_name, SUBCOMMANDS[cmd_name], about)
        command: click.Command = getattr(importlib.import_module("." + module, __package__), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, row[2]) for name, row in self._table.items()])


def _group(name: str, table: dict[str, tuple[str, str, str]], about: str) -> LazyGroup:
    group = LazyGroup(table, name=name, help=about, no_args_is_help=True)
    return common_options(group)


def top() -> LazyGroup:
    """The command `jobscribe`."""
    group = LazyGroup(COMMANDS, name="jobscribe", no_args_is_help=True, help=_ABOUT, epilog=_CODES)
    group = common_options(group)
    group.params.append(
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_version,
            help="Show the version and exit.",
        )
    )
    return group


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from ..protocol.version import VERSION

        click.echo(VERSION)
        ctx.exit()


_ABOUT = """Runs other people's computations and keeps the truth about them.

Standard output is data, standard error is talk. A job is named by its computeJid, by a unique beginning of it (or of the
simulation id in it), or by `last`."""

_CODES = """Exit codes: the job's own for `run` and `job wait` (128+n for signal n); 125 when jobscribe itself failed; 124 when
`job wait --timeout` ran out; 2 for wrong usage; 1 when a check found something."""
