"""Forms of values in configurations of OpenPAI, and the checks that both versions share."""

import re
from collections.abc import Iterator
from typing import Any

from ...protocol.fields import InvalidForm
from ...protocol.redaction import Redactor, is_secret
from ..fields import Findings, element, member, quoted, shown
from ..structs import Place
from .draft import Draft, LocalPath, Options
from .task_script import code_name, folder_problem, is_local

#: The file that describes the job, in the directory of each task.
JOB_FILE = "job.json"
ROLE_NAME = "a letter, then letters, digits or _, at most 32, because variables contain it"
PLUGINS = "com.microsoft.pai.runtimeplugin"
_FOREVER = -2
_SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh")
#: Parameters of the plugin `ssh` with which OpenPAI waits for the sshd of all tasks.
_BARRIER = "sshbarrier"
#: Commands that need root or another network.
_FROM_OUTSIDE = re.compile(
    r"\b(?:(?:apt|apt-get|yum|dnf|apk|conda)\s+(?:-\S+\s+)*(?:update|install|add)\b"
    r"|pip3?\s+(?:-\S+\s+)*install(?!.*--no-index)"
    r"|git\s+clone\s[^;&|]*?(?:https?:|git@|git:|ssh:)"
    r"|(?:wget|curl)\s[^;&|]*?(?:https?|ftp)://(?!\$|\"|127\.|localhost))"
)
_NO_EFFECT = {
    "hivedScheduler": ("queues decide", "`--queue` and `priority` of a job file"),
    "jobStatusChangeNotification": ("the site notifies", "a notification target of the operator"),
    "tensorBoard": ("there is no TensorBoard", "a task that starts it"),
}


def job_name(value: Any) -> str:
    if isinstance(value, str) and "~" in value:
        raise InvalidForm("it contains ~, which separates the user from the job")
    if not isinstance(value, str):
        raise InvalidForm(f"it is {shown(value)}")
    return value


def retries(value: Any) -> Any:
    """Return a number of retries, unless OpenPAI means a service with it."""
    if value == _FOREVER:
        raise InvalidForm("-2 restarts a job for ever, also after a success", "-1 to 1,000")
    return value


def scalar(value: Any) -> str:
    """Return a text, number, true or false as OpenPAI writes it into variables and commands."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    if isinstance(value, str | int):
        return str(value)
    raise InvalidForm(f"it is {shown(value)}", "a text, a number, true or false")


def check_folder(draft: Draft, place: Place, key: str, use: str, folder: str) -> str:
    """Check a folder and return it; "" if tasks cannot use it. use: `dataDir`, `outputDir` or
    `codeDir`.
    """
    problem = folder_problem(folder)
    if problem is None and use == "codeDir" and is_local(folder):
        name = code_name(folder)
        if not name or name.startswith(".") or name == JOB_FILE:
            problem = f"its name {quoted(name)} cannot be that of a folder in tasks"
    if problem is not None:
        place.error(key, problem, "the absolute path of a folder on the hosts of the tasks")
        return ""
    path = member(place.path, key)
    if is_local(folder):
        draft.paths.append(LocalPath(path, use, folder))
    elif use == "codeDir":
        place.error(
            key,
            "jobscribe copies no code from there",
            "the absolute path of a folder or tar file on the hosts of the tasks",
        )
    else:
        place.findings.warning(
            path,
            "jobscribe neither reads nor mounts this address; the program must",
            "the absolute path of a folder on the hosts of the tasks",
        )
    return folder


def storages(place: Place, options: Options, also: tuple[str, ...] = ()) -> list[str]:
    """Check `extras` and return the volumes that it names. also: plugins that are read elsewhere."""
    volumes: list[tuple[str, str]] = []
    extras = place.data if isinstance(place.data, dict) else {}
    for path, key, value in _leaves(place.path, extras):
        if is_secret(key, value) or (isinstance(value, str) and Redactor().text(value) != value):
            place.findings.error(
                path,
                "it looks like a secret, and jobscribe hides nothing in `extras`",
                "a file that only you can read, whose path the command gets",
            )
    for key, value in extras.items():
        path = member(place.path, str(key))
        if key == "storages":
            volumes += _names(value, path)
        elif key == PLUGINS:
            volumes += _plugins(place, value, path, also)
        elif key == "gpuType":
            continue
        elif key == "gangAllocation":
            if scalar_or_none(value) == "false":
                place.findings.warning(
                    path, "jobscribe places all tasks of a job together", "one job for each task"
                )
        else:
            why, right = _NO_EFFECT.get(key, ("jobscribe does not know it", "leave it out"))
            place.findings.warning(path, f"it has no effect: {why}", right)
    for name, path in volumes if not options.containers else ():
        place.findings.warning(
            path,
            f"{quoted(name)} is not mounted, because the tasks run without containers",
            "the path of the data on the hosts",
        )
    return [name for name, _ in volumes]


def put_ssh(draft: Draft, place: Place, options: Options) -> None:
    """Convert the plugin `ssh` of `extras`: with `jobssh: true`, tasks reach each other by ssh."""
    extras = place.data if isinstance(place.data, dict) else {}
    plugins = extras.get(PLUGINS)
    for n, plugin in enumerate(plugins if isinstance(plugins, list) else []):
        if not isinstance(plugin, dict) or plugin.get("plugin") != "ssh":
            continue
        path = element(member(place.path, PLUGINS), n)
        parameters = plugin.get("parameters")
        parameters = parameters if isinstance(parameters, dict) else {}
        wanted = parameters.get("jobssh", False)
        if not isinstance(wanted, bool):
            problem = f"its `jobssh` is {shown(wanted)}"
            place.findings.error(path, problem, "true or false, without quotes")
        elif wanted and options.containers:
            draft.put(["ssh"], True, path)
        elif wanted:
            place.findings.warning(
                path, "there is no sshd without containers", "`jobscribe job shell JOB`"
            )
        for key in parameters:
            if key not in ("jobssh", "userssh"):
                why = "ssh waits up to half a minute for a task that starts"
                if not str(key).startswith(_BARRIER):
                    why = "jobscribe does not know it"
                said = f"its {quoted(str(key))} has no effect: {why}"
                place.findings.warning(path, said, "leave it out")
        if "userssh" in parameters:
            place.findings.warning(
                path, "no port of a task is open to users", "`jobscribe job ssh JOB`"
            )


def note_image(findings: Findings, path: str, image: str) -> None:
    """Warn that the user chose to run the tasks without this image."""
    findings.warning(
        path,
        f"the commands run without {quoted(image)}, with the programs of the hosts",
        "a driver with containers",
    )


def note_shell(findings: Findings, path: str, command: str) -> None:
    """Warn of a command that is only a shell, which ends at once because it has no input."""
    if command.strip() in _SHELLS:
        findings.warning(path, "a shell without input ends at once", "`sleep infinity`")


def note_installs(findings: Findings, path: str, command: str) -> None:
    """Warn of a command that gets programs or data from another network, which containers lack."""
    if (found := _FROM_OUTSIDE.search(command)) is not None:
        words = " ".join([w for w in found[0].split() if not w.endswith((":", "//"))][:3])
        findings.warning(
            path,
            f"{quoted(words)} fails in a container: it has no root, and no network but that of its job",
            "an image that has the programs, and `dataDir` or `codeDir` for the rest",
        )


def put_gpu_type(draft: Draft, place: Place, role: str, value: str, gpus: int) -> None:
    """Set the type of a role's GPUs: of the configuration, else `gpuType` of `extras`."""
    extras = place.within("extras")
    origin = "gpuType" if value else member(extras.path, "gpuType")
    if not value and isinstance(extras.data, dict):
        value = extras.data.get("gpuType") or ""
    if value and gpus:
        draft.put(["roles", role, "gpuType"], value, origin)


def scalar_or_none(value: Any) -> str | None:
    try:
        return scalar(value)
    except InvalidForm:
        return None


def _plugins(
    place: Place, value: Any, path: str, also: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    for n, plugin in enumerate(value if isinstance(value, list) else []):
        here = element(path, n)
        name = plugin.get("plugin") if isinstance(plugin, dict) else None
        parameters = plugin.get("parameters") if isinstance(plugin, dict) else None
        if name in also:
            continue
        for key in plugin if isinstance(plugin, dict) else ():
            if key not in ("plugin", "parameters"):
                place.findings.warning(member(here, str(key)), "it has no effect", "leave it out")
        if name == "teamwise_storage":
            names = parameters.get("storageConfigNames") if isinstance(parameters, dict) else None
            yield from _names(names, here)
        elif name == "ssh":
            continue  # see put_ssh
        else:
            place.findings.error(
                here, f"there is no plugin {shown(name)} here", "its commands in `commands`"
            )


def _names(value: Any, path: str) -> list[tuple[str, str]]:
    """Return the names in a list of names, or of objects with `name`."""
    items = value if isinstance(value, list) else []
    named = [item.get("name") if isinstance(item, dict) else item for item in items]
    return [(name, element(path, n)) for n, name in enumerate(named) if isinstance(name, str)]


def _leaves(path: str, value: Any, key: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield path, key and value of each leaf; those of a list have the key of the list."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _leaves(member(path, str(name)), each, str(name))
    elif isinstance(value, list):
        for n, each in enumerate(value):
            yield from _leaves(element(path, n), each, key)
    else:
        yield path, key, value
