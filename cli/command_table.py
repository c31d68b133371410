"""The table of all commands, and a click group that imports a command's module on first use.

`jobscribe --help` and `jobscribe job --help` need the table alone. This module must not import
command modules, or modules that only some commands need.
"""

import importlib

import click

from .session.common_options import common_options

#: name -> (module, function in it, one line of help). An empty module marks the group of SUBCOMMANDS
#: with the name in the second place.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": (
        "services.up",
        "up",
        "Start supervisor and front end for this user: development mode, its own secret.",
    ),
    "supervisor": (
        "services.supervisor",
        "supervisor",
        "Start a supervisor with a configured secret (for services).",
    ),
    "router": (
        "services.router",
        "router",
        "Start a router of a site with shards (for services).",
    ),
    "server": ("services.server", "server", "Start a front end for browsers (for services)."),
    "agent": (
        "",
        "agent",
        "List and stop agents, print their logs (with --keeper-fd: start one; for keepers).",
    ),
    "keeper": ("agent_entry", "keeper", "Start a keeper (for drivers)."),
    "supervisors": (
        "services.supervisors",
        "supervisors",
        "List the supervisors of a site in PostgreSQL: which one serves.",
    ),
    "run": ("run", "run", "Submit a command, follow its output, exit with its code."),
    "job": ("", "job", "Submit, monitor and control jobs."),
    "login": ("login", "login", "Sign in to a cluster, so that runs start there as you."),
    "logout": ("login", "logout", "Sign out of a cluster; jobs in Slurm continue."),
    "auth": ("", "auth", "Log in at a site with an API token; create and revoke tokens."),
    "audit": ("access.audit", "audit", "List requests of administrators for other users."),
    "usage": (
        "usage",
        "usage",
        "Show the usage of ended runs, summed by user, group or time; or disk usage.",
    ),
    "trace": ("trace.command", "trace", "Show the timeline of a job, op or request."),
    "debug": ("", "debug", "Debug Python code in running jobs, or before it runs as a job."),
    "core": ("", "core", "List, copy and read the core files of crashed jobs."),
    "profile": ("", "profile", "Record, list, fetch and open profiles of jobs."),
    "explain-exit": ("explain_exit", "explain_exit", "Explain an exit code, a signal or a cause."),
    "health": ("health", "health", "Report the supervisor's health, and an action for each fault."),
    "secret": ("", "secret", "Rotate secrets without a restart; list them."),
    "config": ("", "config", "Show and check the configuration."),
    "pool": ("", "pool", "Show and check the hosts of container drivers."),
    "drain": ("", "drain", "Start no new runs on a host, or at all, for maintenance."),
    "cluster": ("", "cluster", "List the clusters for runs."),
    "notify": ("", "notify", "List, test and retry notification targets."),
    "retention": (
        "services.retention",
        "retention",
        "Show what old files the supervisor removed, and what it would remove now.",
    ),
    "driver": ("", "driver", "Check the drivers that start runs."),
    "db": ("", "db", "Check, repair, compact, back up and read the event store."),
    "doctor": (
        "doctor.command",
        "doctor",
        "Check machine, user and installation for faults that affect jobs.",
    ),
    "bundle": (
        "bundle.command",
        "bundle",
        "Collect all data about one job in one archive, without secrets.",
    ),
    "install-units": (
        "install_units.command",
        "install_units",
        "Write systemd units for this installation, after showing them.",
    ),
    "demo": (
        "demo.command",
        "demo",
        "Run a real computation from submission to result, in a new root.",
    ),
}

SUBCOMMANDS: dict[str, dict[str, tuple[str, str, str]]] = {
    "job": {
        "submit": (
            "job.submit",
            "submit",
            "Submit a command, many commands or a job file; print the computeJids and return.",
        ),
        "lint": ("job.lint", "lint", "Check job files, without a supervisor."),
        "simulate": (
            "job.simulate",
            "simulate",
            "Run one task of a job file on this machine, without a supervisor.",
        ),
        "list": ("job.list", "list_jobs", "List jobs, newest change first."),
        "status": ("job.status", "status", "Show the status of jobs."),
        "tasks": ("job.tasks", "tasks", "Show the tasks and attempts of a job."),
        "logs": ("job.logs.command", "logs", "Print the output of a job or of one of its tasks."),
        "files": ("job.files.command", "files", "List the files in the run directory of a job."),
        "get": (
            "job.files.command",
            "get",
            "Copy files from the run directory of a job to a local folder.",
        ),
        "put": (
            "job.files.command",
            "put",
            "Copy local files into the run directory of a job.",
        ),
        "shell": (
            "job.shell",
            "shell",
            "Open a shell in the directory and environment of a task.",
        ),
        "ssh": (
            "job.ssh.command",
            "ssh",
            "Log in to a task with OpenSSH, from any machine with a token.",
        ),
        "ssh-proxy": (
            "job.ssh.command",
            "ssh_proxy",
            "Connect OpenSSH with an sshd in a task; `job ssh` starts it.",
        ),
        "tag": ("job.list", "tag", "Show, add or remove the tags of a job."),
        "release": ("job.release", "release", "End the debug hold of failed tasks."),
        "purge": ("job.files.purge", "purge", "Remove the files of jobs that are over."),
        "cancel": ("job.cancel", "cancel", "Cancel jobs."),
        "metrics": (
            "job.metrics",
            "metrics",
            "Show the resource usage of a job's tasks: CPU, memory, disks, GPUs.",
        ),
        "why": ("job.why", "why", "Explain why a job waits, runs, or ended as it did."),
        "retry": ("job.retry", "retry", "Start a job again with the same request."),
        "clone": (
            "job.clone.command",
            "clone",
            "Submit a new job from the definition of an earlier one, with changes.",
        ),
        "repro": (
            "job.repro.command",
            "repro",
            "Write a folder that runs one task of a job again, by hand or under a debugger.",
        ),
        "group": ("job.group", "group", "Show the status of the runs of an array or simulation."),
        "wait": ("job.wait", "wait", "Wait for jobs; exit with the job's code."),
        "exits": ("job.exits", "exits", "List the meanings of exit codes and signals."),
    },
    "debug": {
        "list": (
            "debug.breakpoints",
            "list_stops",
            "List the processes of your jobs that wait for a debugger.",
        ),
        "attach": (
            "debug.attach",
            "attach",
            "Debug a stopped process of a job in this terminal, with Pdb.",
        ),
        "continue": (
            "debug.resume",
            "resume",
            "Continue the stopped processes of a job.",
        ),
        "serial": (
            "debug.serial",
            "serial",
            "Find what prevents a Python object from being sent to a job.",
        ),
        "stack": (
            "debug.stack",
            "stack",
            "Print the stacks of all processes of a running task.",
        ),
    },
    "core": {
        "list": (
            "core.listing",
            "list_cores",
            "List the core files of a job, or say why there are none.",
        ),
        "fetch": ("core.fetch", "fetch", "Copy a core file of a job to a local file."),
        "stack": ("core.stack", "stack", "Print the stack of a crashed process of a job."),
    },
    "profile": {
        "record": (
            "profile.record",
            "record",
            "Record a CPU profile of a running task with py-spy.",
        ),
        "list": ("profile.list", "list_profiles", "List the profiles of a job."),
        "fetch": ("profile.fetch", "fetch", "Copy profiles of a job to a local folder."),
        "open": (
            "profile.open",
            "open_profile",
            "Show a profile as a flame graph or a curve in the browser.",
        ),
    },
    "auth": {
        "login": ("access.login", "login", "Log in at a site: store an API token for it."),
        "logout": ("access.login", "logout", "Remove the stored API token of a site."),
        "whoami": ("access.login", "whoami", "Show user, role, scopes and token in use."),
        "token": ("", "auth token", "Create, list and revoke API tokens."),
        "uid": ("access.uids", "uid", "Show the uids of the names with which people sign in."),
    },
    "auth token": {
        "create": ("access.tokens", "create", "Create an API token, and print it once."),
        "list": ("access.tokens", "list_tokens", "List your API tokens, without secrets."),
        "revoke": ("access.tokens", "revoke", "Revoke an API token."),
    },
    "secret": {
        "rotate": (
            "access.secret_rotation",
            "rotate",
            "Replace a secret; the earlier one stays valid for a while.",
        ),
        "list": (
            "access.secret_rotation",
            "list_secrets",
            "List the secrets, without their values.",
        ),
    },
    "config": {
        "show": ("config", "show", "Show every setting and the source of its value."),
        "check": (
            "config",
            "check",
            "Check whether a supervisor can start with this configuration.",
        ),
    },
    "pool": {
        "show": ("pool", "show", "Show the hosts with state and usage."),
        "check": ("pool", "check", "Use each host as a run would, and report its faults."),
    },
    "drain": {
        "host": ("services.drain", "host", "Start no new runs on a host; what runs goes on."),
        "site": ("services.drain", "site", "Start no new runs at all; what runs goes on."),
        "supervisor": (
            "services.drain",
            "supervisor",
            "Let the supervisor that serves hand over to a standby.",
        ),
        "list": (
            "services.drain",
            "list_drains",
            "List the drains: of what, since when, by whom and why.",
        ),
        "end": ("services.drain", "end", "End the drain of a host, or of the site."),
    },
    "agent": {
        "list": ("agent", "list_agents", "List your agents with state, jobs and log file."),
        "logs": ("agent", "agent_logs", "Print the log of an agent or of its keeper."),
        "stop": ("agent", "stop_agents", "Stop agents without runs, and their keepers."),
    },
    "cluster": {
        "list": ("cluster", "list_clusters", "List the clusters: defaults, limits, partitions."),
    },
    "notify": {
        "list": ("notify", "list_targets", "List the notification targets and their state."),
        "test": ("notify", "test", "Send a test message to a target, and show its response."),
        "retry": ("notify", "retry", "Send the waiting notifications of a target now."),
    },
    "driver": {
        "check": (
            "driver",
            "check",
            "Use a driver's clusters as a run would, and report their faults.",
        ),
    },
    "db": {
        "check": ("db.check", "check", "Verify every event, checksum and record."),
        "move": ("db.move", "move", "Move the log from its file to a PostgreSQL database."),
        "rebuild": ("db.rebuild", "rebuild", "Write records and index again from the log."),
        "repair": ("db.repair", "repair", "Report damage, and repair the store."),
        "compact": ("db.compact", "compact", "Shorten the log: fold jobs that ended long ago."),
        "backup": ("db.backup", "backup", "Copy the store, also while the supervisor runs."),
        "restore": ("db.restore", "restore", "Replace the store by a backup."),
        "init": ("db.init", "init", "Create an empty log in a root that has lost its log."),
        "adopt": ("db.adopt", "adopt", "Give a copied root a new identity."),
        "story": ("db.story", "story", "Print a job's history from the log, without a supervisor."),
        "export": ("db.export", "export", "Write all events as JSON lines."),
    },
}


class LazyGroup(click.Group):
    """A click group whose commands are rows of a table."""

    def __init__(self, table: dict[str, tuple[str, str, str]], **attributes: object) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]
        self._table = table

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # Earlier deployments start agents as `jobscribe agent --keeper-fd ...`: pass this on.
        if (
            self.name == "agent"
            and args
            and args[0].startswith("-")
            and args[0] not in ("--help", "-h")
            and not set(args) & {*self._table}
        ):
            from .agent_entry import exec_module

            exec_module("jobscribe.agent", tuple(args))
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return None
        module, name, about = self._table[cmd_name]
        if not module:
            return _group(cmd_name, SUBCOMMANDS[name], about)
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


_ABOUT = """Run computations for other users and keep a durable record of them.

Standard output contains data; standard error contains messages. Name a job by its computeJid, by a unique beginning of it
(or of the simulation id in it), or by `last`."""

_CODES = """Exit codes: the job's own for `run` and `job wait` (128+n for signal n); 125 if jobscribe itself failed; 124 if
`job wait --timeout` ran out; 2 for wrong usage; 1 if a check found a fault."""
