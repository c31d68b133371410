"""The job description for a configuration of OpenPAI, protocol version 2 (YAML). `version2_keys` has
its keys.
"""

import re
from collections.abc import Mapping

from ...protocol.fields import InvalidForm
from ...protocol.redaction import is_secret
from ..fields import Findings, element, member, quoted
from ..structs import Place, convert
from . import callbacks, task_script
from .draft import Draft, LocalPath, LoginSource, Options
from .task_script import Folders
from .templates import Templates
from .values import (
    check_folder,
    note_image,
    note_installs,
    note_shell,
    put_gpu_type,
    put_ssh,
    storages,
)
from .version2_keys import (
    SECRET_FORM,
    AuthKeys,
    DeploymentRoleKeys,
    JobKeys,
    PrerequisiteKeys,
    RoleKeys,
)

#: Keys of a job description, with their names here.
WORDS = {
    "roles": "taskRoles",
    "tasks": "instances",
    "queue": "virtualCluster",
    "memory": "memoryMB",
    "shm": "shmMB",
    "count": "jobRetryCount",
    "image": "uri",
    "command": "commands",
    "minFailed": "minFailedInstances",
    "minSucceeded": "minSucceededInstances",
}
#: The password of an image's credentials.
PASSWORD = re.compile(r"<%\s*\$secrets\.([A-Za-z_][A-Za-z0-9_]*)\s*%>")
#: The documented default of `shmMB`.
_SHM = 512


def draft_of(data: object, findings: Findings, options: Options) -> Draft:
    """Return the job description of a configuration. Records its problems."""
    data = _without_text(data)
    place = Place(data, "", findings)
    keys, draft = convert(JobKeys, data, findings), Draft(WORDS)
    retries, at = (keys.job_retry_count, "jobRetryCount"), "defaults.virtualCluster"
    draft.put_common(keys.name, options, retries, keys.defaults.virtual_cluster, at)
    draft.put(["env", "PAI_DEFAULT_FS_URI"], "file://", "")
    for name, secret in keys.secrets.items():
        if secret.file:
            draft.paths.append(LocalPath(member("secrets", name), "secret", secret.file))
    for name in filter(is_secret, keys.parameters):
        findings.warning(
            member("parameters", name),
            "its value is stored with the job, and others may read it",
            "`secrets`, if it is one",
        )
    _Roles(keys, draft, place, options).convert()
    draft.put_logins()
    return draft


def _without_text(data: object) -> object:
    """Return the configuration without a text in place of `secrets`, which a message would show."""
    if isinstance(data, dict) and isinstance(data.get("secrets"), str | int | float):
        return {**data, "secrets": []}
    return data


class _Roles:
    """Conversion of the roles of one configuration."""

    def __init__(self, keys: JobKeys, draft: Draft, place: Place, options: Options) -> None:
        self._keys, self._draft, self._place, self._options = keys, draft, place, options
        self._findings = place.findings
        #: names of secrets that are passwords of images, and that commands contain
        self._in_auth: set[str] = set()
        self._in_commands: set[str] = set()
        self._volumes = storages(place.within("extras"), options, also=("cmd",))
        self._plugins = callbacks.command_plugins(place.within("extras"), keys.task_roles)
        put_ssh(self._draft, place.within("extras"), options)
        self._known = self._prerequisites()
        #: the path of the default deployment
        self._deployed_at = ""
        self._deployment = self._chosen_deployment()
        # those with an invalid value, too, so that commands with them are no further problem
        names = place.within("secrets").data
        self._secrets = {
            name: f"PAI_SECRET_{name}" for name in (names if isinstance(names, dict) else {})
        }

    def convert(self) -> None:
        self._draft.begin(["roles"], "taskRoles")
        roles = self._place.within("taskRoles")
        for name, role in self._keys.task_roles.items():
            self._role(name, role, roles.within(name))
            if len(self._keys.task_roles) > 1 and role.completion.min_succeeded_instances is None:
                self._findings.warning(
                    member(roles.path, name),
                    "servers of OpenPAI end a job when all instances of one such role have succeeded; "
                    "here the job goes on until all roles have ended",
                    "`minSucceededInstances` in `completion`, -1 for never",
                )
        self._check_secrets()

    def _prerequisites(self) -> dict[tuple[str, str], tuple[PrerequisiteKeys, str]]:
        """Return the prerequisites by type and name, each with its path."""
        out: dict[tuple[str, str], tuple[PrerequisiteKeys, str]] = {}
        for n, each in enumerate(self._keys.prerequisites):
            path = element("prerequisites", n)
            if each.name and out.setdefault((each.type, each.name), (each, path))[1] != path:
                first = out[each.type, each.name][1]
                self._findings.error(
                    member(path, "name"), f"{first} has the same name", "a unique name"
                )
            if each.auth is not None:
                self._login(each.auth, member(path, "auth"))
            if each.plugin not in ("", callbacks.PLUGIN):
                self._findings.error(
                    member(path, "plugin"),
                    f"jobscribe has no plugins but {callbacks.PLUGIN}",
                    "its commands in `commands`",
                )
            for m, name in enumerate(each.require):
                if name not in [p.name for p in self._keys.prerequisites]:
                    self._missing(element(member(path, "require"), m), name)
            if each.failure_policy and not each.callbacks:
                self._findings.warning(
                    member(path, "failurePolicy"), "it has no effect", "leave it out"
                )
        return out

    def _login(self, auth: AuthKeys, path: str) -> None:
        """Convert the credentials of an image. Their password is a secret of the configuration."""
        found = PASSWORD.fullmatch(str(auth.password or "").strip())
        if found is None or auth.username is None:
            self._findings.error(
                member(path, "password" if found is None else "username"),
                "a password here would be readable by others" if found is None else "it is missing",
                "`<% $secrets.NAME %>`" if found is None else "the user name at the registry",
            )
            return
        secret = self._keys.secrets.get(found[1])
        if secret is None or not (secret.file or secret.value):
            if not self._findings.has_error("secrets"):
                self._once(
                    member(path, "password"),
                    InvalidForm(f"there is no secret {quoted(found[1])}", "a key of `secrets`"),
                )
            return
        self._in_auth.add(found[1])
        try:
            templates = Templates(self._keys.parameters, {})
            registry = templates.rendered(str(auth.registryuri or ""), shell=False)
            username = templates.rendered(str(auth.username), shell=False)
        except InvalidForm as e:
            self._once(path, e)
            return
        self._draft.logins.append(
            LoginSource(path, path, secret.file, registry, username, secret.value)
        )

    def _check_secrets(self) -> None:
        """Refuse values of secrets for other uses than credentials of images."""
        for name, secret in self._keys.secrets.items():
            if secret.value and (name not in self._in_auth or name in self._in_commands):
                self._findings.error(
                    member("secrets", name),
                    "a secret in this file would be stored with the job",
                    SECRET_FORM,
                )

    def _chosen_deployment(self) -> Mapping[str, DeploymentRoleKeys]:
        names = [d.name for d in self._keys.deployments]
        for n, deployment in enumerate(self._keys.deployments):
            path = element("deployments", n)
            if deployment.name and names.index(deployment.name) != n:
                first = element("deployments", names.index(deployment.name))
                self._findings.error(
                    member(path, "name"), f"{first} has the same name", "a unique name"
                )
            for role in deployment.task_roles:
                if role not in self._keys.task_roles:
                    self._findings.error(
                        member(member(path, "taskRoles"), role),
                        "there is no such role",
                        "a key of `taskRoles`",
                    )
        wanted = self._keys.defaults.deployment
        if wanted and wanted not in names:
            self._findings.error(
                "defaults.deployment",
                f"there is no deployment {quoted(wanted)}",
                f"one of: {', '.join(names)}" if names else "no deployment",
            )
        if not wanted or wanted not in names:
            return {}
        self._deployed_at = element("deployments", names.index(wanted))
        return self._keys.deployments[names.index(wanted)].task_roles

    def _role(self, name: str, role: RoleKeys, here: Place) -> None:
        top = ["roles", name]
        self._draft.begin(top, here.path)
        each, options = role.resource_per_instance, role.extra_container_options
        resources = member(here.path, "resourcePerInstance")
        completion = member(here.path, "completion")
        shm = min(_SHM, each.memory_mb or _SHM) if options.shm_mb is None else options.shm_mb
        for key, path, value in (
            ("tasks", member(here.path, "instances"), role.instances),
            ("cpu", member(resources, "cpu"), each.cpu or 1),
            ("memory", member(resources, "memoryMB"), each.memory_mb or 1),
            ("gpu", member(resources, "gpu"), each.gpu),
            ("shm", member(member(here.path, "extraContainerOptions"), "shmMB"), shm or 1),
            ("ports", member(resources, "ports"), dict(each.ports)),
            ("command", member(here.path, "commands"), self._command(name, role, here) or "true"),
            (
                "minFailed",
                member(completion, "minFailedInstances"),
                role.completion.min_failed_instances,
            ),
            (
                "minSucceeded",
                member(completion, "minSucceededInstances"),
                role.completion.min_succeeded_instances,
            ),
        ):
            self._draft.put([*top, key], value, path)
        put_gpu_type(self._draft, self._place, name, "", each.gpu)
        image = self._prerequisite(role.docker_image, "dockerimage", "dockerImage", here)
        if self._options.containers and image is not None:
            self._draft.put([*top, "image"], _first(image[0]), member(image[1], "uri"))
            self._draft.put([*top, "volumes"], self._volumes, "extras")
        elif image is not None:
            note_image(self._findings, member(here.path, "dockerImage"), _first(image[0]))
        if options.infiniband:
            self._findings.warning(
                member(member(here.path, "extraContainerOptions"), "infiniband"),
                "jobscribe does not set up InfiniBand",
                "leave it out",
            )
        if role.task_retry_count:
            self._findings.warning(
                member(here.path, "taskRetryCount"),
                "it has no effect: all tasks of a job are tried again together",
                "`jobRetryCount`",
            )

    def _prerequisite(
        self, name: str, type_: str, key: str, here: Place
    ) -> tuple[PrerequisiteKeys, str] | None:
        found = self._known.get((type_, name)) if name else None
        if name and found is None:
            here.error(
                key,
                f"there is no prerequisite {quoted(name)} of type {type_}",
                "the name of a prerequisite",
            )
        return found

    def _command(self, name: str, role: RoleKeys, here: Place) -> str:
        """Return the command of a role: its folders, then the commands; the first failure ends it."""
        parts: dict[str, tuple[PrerequisiteKeys, str]] = {}
        for type_, wanted in (
            ("data", role.data),
            ("output", role.output),
            ("script", role.script),
        ):
            if (found := self._prerequisite(wanted, type_, type_, here)) is not None:
                parts[type_] = found
        named = {known: found for (_, known), found in self._known.items()}
        for n, wanted in enumerate(role.prerequisites):
            if wanted not in named:
                self._missing(element(member(here.path, "prerequisites"), n), wanted)
            elif not named[wanted][0].callbacks:
                self._findings.warning(
                    member(here.path, "prerequisites"),
                    f"{quoted(wanted)} has no effect here: it has no `callbacks`",
                    "`dockerImage`, `data`, `output` or `script`",
                )
        uris, known = self._values(parts)
        templates = Templates(self._keys.parameters, self._secrets, known)
        extra = self._deployment.get(name, DeploymentRoleKeys())
        deployed = member(member(self._deployed_at, "taskRoles"), name)
        blocks = callbacks.of_prerequisites(role.prerequisites, named)
        for plugin, path in self._plugins:
            if not plugin.taskroles or name in plugin.taskroles:
                blocks += callbacks.of_plugin(plugin, path)
        around = callbacks.around(blocks, lambda line, path: self._rendered(templates, line, path))
        lines = around.before | {
            element(path, n): self._rendered(templates, line, element(path, n))
            for path, block in (
                (member(deployed, "preCommands"), extra.pre_commands),
                (member(here.path, "commands"), role.commands),
                (member(deployed, "postCommands"), extra.post_commands),
            )
            for n, line in enumerate(block)
        }
        lines |= around.after
        for path, line in list(lines.items())[:1] if len(lines) == 1 else ():
            note_shell(self._findings, path, line)
        for path, line in lines.items() if self._options.containers else ():
            note_installs(self._findings, path, line)
        folders = Folders(
            self._folder("data", uris, parts),
            self._folder("output", uris, parts),
            self._folder("script", uris, parts),
        )
        self._in_commands |= templates.used
        known_secrets = self._keys.secrets
        secrets = {
            self._secrets[name]: known_secrets[name].file
            for name in sorted(templates.used & known_secrets.keys())
        }
        before = task_script.lines(folders, secrets)
        return (
            f"{before}set -o errexit\n" + "\n".join(lines.values()) if any(lines.values()) else ""
        )

    def _values(
        self, parts: Mapping[str, tuple[PrerequisiteKeys, str]]
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the addresses of prerequisites by type, and the values of their templates."""
        uris: dict[str, str] = {}
        known: dict[str, str] = {}
        for type_, (each, path) in parts.items():
            known |= {f"{type_}.{key}": text for key, text in callbacks.texts(each).items()}
            all_ = [each.uri] if isinstance(each.uri, str) else each.uri
            for n, text in enumerate(all_):
                known[f"{type_}.uri[{n}]"] = self._uri(text, path)
            uris[type_] = known[f"{type_}.uri"] = known.get(f"{type_}.uri[0]", "")
        return uris, known

    def _missing(self, path: str, name: str) -> None:
        said = f"there is no prerequisite {quoted(name)}"
        self._findings.error(path, said, "the name of a prerequisite")

    def _uri(self, uri: str, path: str) -> str:
        try:
            text = Templates(self._keys.parameters, {}).rendered(uri, shell=False)
        except InvalidForm as e:
            self._once(member(path, "uri"), e)
            return ""
        known = {"PAI_DEFAULT_FS_URI": "file://", "PAI_JOB_NAME": self._keys.name}
        known |= dict.fromkeys(("PAI_USER_NAME", "PAI_USERNAME"), self._options.user)
        return task_script.local_path(text, known)

    def _folder(
        self,
        type_: str,
        uris: Mapping[str, str],
        parts: Mapping[str, tuple[PrerequisiteKeys, str]],
    ) -> str:
        """Return the folder of a prerequisite. A script may be anything that commands fetch."""
        uri = uris.get(type_, "")
        if not uri or (type_ == "script" and not task_script.is_local(uri)):
            return ""
        path = parts[type_][1]
        if self._findings.has_error(member(path, "uri")):
            return ""
        use = {"data": "dataDir", "output": "outputDir", "script": "codeDir"}[type_]
        return check_folder(self._draft, Place({}, path, self._findings), "uri", use, uri)

    def _rendered(self, templates: Templates, line: str, path: str) -> str:
        try:
            return templates.rendered(line, shell=True)
        except InvalidForm as e:
            self._once(path, e)
            return ""

    def _once(self, path: str, error: InvalidForm) -> None:
        if not self._findings.has_error(path):
            self._findings.error(path, str(error), error.right)


def _first(each: PrerequisiteKeys) -> str:
    if isinstance(each.uri, str):
        return each.uri
    return each.uri[0] if each.uri else ""
