"""Declared dependencies: the packages that the code imports are those that setup.py declares, no more
and no fewer.
"""

import ast
import pathlib
import re
import runpy
import sys
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).resolve().parents[2]
SETUP = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")
AGENT_FOLDERS = ("agent", "apps", "protocol", "runtime")
#: Import names that differ from the name of their distribution.
MODULES = {
    "google-re2": "re2",
    "nvidia-ml-py": "pynvml",
    "prometheus-client": "prometheus_client",
    "pyyaml": "yaml",
}
#: Modules that jobs import from folders of their own (agent/breakpoints/staged,
#: agent/profiles/staged), and those that these import if the Python of the job has them.
STAGED = {
    *("jobscribe_debugger", "jobscribe_pdb", "jobscribe_dap"),
    *("jobscribe_profiler", "jobscribe_recorders"),
    *("debugpy", "pydevd", "pydevd_pycharm"),
}
#: Of the Python of the job, if it is there.
OF_THE_JOB = {"memray"}
#: Declared for another package, which uses them if they are installed.
INDIRECT = {"bcrypt"}
#: Imported for the interface of a declared package, which requires them.
INTERFACE = {
    "urllib3": "docker",
    "werkzeug": "flask",
}


def declared(requirements: Iterable[str]) -> set[str]:
    names = {re.split(r"[<>=!~;\[ ]", line)[0].lower() for line in requirements}
    return {MODULES.get(name, name) for name in names - INDIRECT}


def imported(folders: Iterable[str]) -> dict[str, str]:
    """Return the top-level modules outside the standard library, each with a file that imports it."""
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_bytes())):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module or ""]
                for name in names:
                    found[name.partition(".")[0]] = str(path.relative_to(ROOT))
    return {
        m: f
        for m, f in found.items()
        if m not in sys.stdlib_module_names | STAGED | OF_THE_JOB | {"jobscribe"}
    }


def test_the_agent_imports_exactly_the_packages_that_it_declares() -> None:
    optional = declared(SETUP["EXTRAS"]["heat"])
    found = imported(AGENT_FOLDERS)
    assert {m: f for m, f in found.items() if m not in optional}.keys() == declared(SETUP["AGENT"])


def test_the_product_imports_exactly_the_packages_that_it_declares() -> None:
    extras = [
        line
        for name in ("client", "docker", "gpu", "heat", "oidc", "pam", "postgres", "sbatch")
        for line in SETUP["EXTRAS"][name]
    ]
    wanted = declared([*SETUP["AGENT"], *SETUP["SERVER"], *extras])
    assert imported(SETUP["PRODUCT"]).keys() - INTERFACE.keys() == wanted
    assert set(INTERFACE.values()) <= wanted


def test_each_place_that_repeats_the_agents_packages_has_all_of_them() -> None:
    names = {line.split(">=")[0] for line in SETUP["AGENT"]}
    from jobscribe.agent.login_node import __main__ as login_node
    from jobscribe.drivers.sbatch.login_node import code_archive

    assert set(login_node._NEEDED) == names
    assert (
        sorted(f"{name}>={least}" for name, least in code_archive.NEEDED.items()) == SETUP["AGENT"]
    )
    (line,) = re.findall(
        r"pip install (msgpack .*)$",
        (ROOT / "docs/agent-install.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert set(line.split()) == names
