"""The server secret and the monitoring token of a running supervisor. They follow their files, so
that `jobscribe secret rotate` needs no restart.

Files that cannot be used are logged and counted; the values in use stay.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...protocol.errors import Refusal
from ...protocol.redaction import Redactor
from ...service.settings.settings import Settings
from ...service.site.secret_rotation import RotatedSecret, SecretValues, opened, state_of
from .root_directory import RootDirectory

#: Interval in which the files are looked at. An unknown value is a reason to look at once.
LOOK_SECS = 1.0


class SiteSecrets(NamedTuple):
    """server: of front ends and local commands; it signs tickets. metrics: of scrapers."""

    server: RotatedSecret
    metrics: RotatedSecret

    def follow(
        self,
        redactor: Redactor,
        noticed: Callable[[str, str], None],
        log: Callable[..., object],
        count: Callable[[str], object],
        changed: Callable[[], object],
    ) -> None:
        """Report from now on what happens to the files. changed: called when the secrets to use are
        others.
        """

        def heard(secret: RotatedSecret) -> None:
            for value in secret.values.all:
                redactor.add(value)
            if secret.problem is not None:
                noticed("secretRefused", f"{secret.problem}; the earlier secret stays in use")
                return
            still = len(secret.accepted()) - 1
            log("a changed {} secret is in use; earlier ones accepted: {}", secret.name, still)
            changed()

        for secret in self:
            secret.heard = heard
            secret.used_earlier = lambda: count("earlierSecret")

    def look(self) -> None:
        for secret in self:
            secret.look()

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield name and sentence of each file that cannot be used."""
        for secret in self:
            if secret.problem is not None:
                yield secret.name, secret.problem


def load(
    settings: Settings, root: RootDirectory, redactor: Redactor, wall: Callable[[], float]
) -> SiteSecrets:
    """Read both secrets; those of the root are created at the first start. Raises Refusal."""
    s = settings.supervisor
    files = {"server": s.server_secret_file, "metrics": s.metrics_secret_file}
    found = SiteSecrets(
        **{
            name: opened(name, file, f"supervisor.{name}_secret_file", wall)
            if file
            else _of_root(name, root, wall)
            for name, file in files.items()
        }
    )
    for secret in found:
        for value in secret.values.all:
            redactor.add(value)
    return found


def _of_root(name: str, root: RootDirectory, wall: Callable[[], float]) -> RotatedSecret:
    """Return a secret of the root. One that an operator made unsafe is used and reported, because
    earlier versions did not check it.
    """
    value, path = root.secret(name), str(root / "secret" / name)
    setting = f"secret/{name}"
    try:
        return opened(name, path, setting, wall)
    except Refusal as e:
        secret = RotatedSecret(name, SecretValues(value), path, setting, wall, state_of(path))
        secret.problem = e.sentence
        return secret
