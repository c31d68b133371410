"""Packaging. This folder is itself the import package `jobscribe`; see ARCHITECTURE.md for why, and
for the traps.
"""

import os
import re

from setuptools import setup

PRODUCT = (
    "agent",
    "apps",
    "cli",
    "client",
    "db",
    "diagnosis",
    "drivers",
    "protocol",
    "router",
    "runtime",
    "schema",
    "service",
    "supervisor",
    "web",
)


def packages() -> list[str]:
    """Every folder of the product that has an `__init__.py`."""
    found = ["jobscribe"]
    for top in PRODUCT:
        for folder, folders, files in os.walk(top):
            folders[:] = sorted(f for f in folders if f != "__pycache__")
            if "__init__.py" in files:
                found.append("jobscribe." + folder.replace(os.sep, "."))
    return found


def version() -> str:
    with open("protocol/version.py", encoding="utf-8") as f:
        match = re.search(r'^VERSION = "([^"]+)"', f.read(), re.MULTILINE)
    if match is None:
        raise RuntimeError("protocol/version.py has no VERSION")
    return match[1]


def readme() -> str:
    with open("README.md", encoding="utf-8") as f:
        return f.read()


#: All that an agent needs; tests/packaging holds that it needs no more. See docs/agent-install.md.
AGENT = ["msgpack>=1.1", "msgspec>=0.20", "tornado>=6.5"]
SERVER = [
    "aiofiles>=24.1",
    "click>=8.1",
    "flask>=3.1",
    "google-re2>=1.1",
    "httpcore[asyncio]>=1.0.9,<2",
    "itsdangerous>=2.2",
    "packaging>=24",
    "prometheus-client>=0.21",
    "psutil>=6",
    "pykern>=20250101",
    "pyyaml>=6",
    "rich>=13.7",
    "waitress>=3.0",
]
EXTRAS = {
    # Python functions as jobs; needed by clients and by the Python of the jobs
    "client": ["cloudpickle>=3"],
    # frames of core files of Python jobs; needed by the Python of the agents or of the jobs
    "core": ["pystack>=1.5; sys_platform == 'linux'"],
    "docker": ["cryptography>=44", "docker>=7.1"],
    "gpu": ["nvidia-ml-py>=12.560"],
    # the app of this name
    "heat": ["numpy>=2"],
    "oidc": ["authlib>=1.9", "joserfc>=1.6.8", "requests>=2.32"],
    "pam": ["pamela>=1.2"],
    # the event store in PostgreSQL (store.url)
    "postgres": ["psycopg[binary]>=3.2"],
    # stacks and profiles of running jobs; beside agents, or in the environments of jobs
    "profile": ["py-spy>=0.4.1"],
    # what the tests of etc/snakemake need; its users install snakemake-executor-plugin-jobscribe
    "snakemake": [
        "setuptools>=77",
        "snakemake>=9.3",
        "snakemake-interface-executor-plugins>=9.3,<10",
    ],
    "sbatch": ["asyncssh>=2.24", "bcrypt>=4"],
    "test": [
        "asyncssh>=2.24",
        "authlib>=1.9",
        "bcrypt>=4",
        "cloudpickle>=3",
        "cryptography>=44",
        "debugpy>=1.8",
        "docker>=7.1",
        "hypothesis>=6.150",
        "joserfc>=1.6.8",
        "numpy>=2",
        "pamela>=1.2",
        "playwright>=1.50",
        "psycopg[binary]>=3.2",
        "py-spy>=0.4.1",
        "pystack>=1.5; sys_platform == 'linux'",
        "pytest>=8.3",
        "pytest-asyncio>=1.2",
        "pytest-timeout>=2.3",
        "pytest-rerunfailures>=16.5",
        "pytest-xdist>=3.6",
        "requests>=2.32",
        "schemathesis>=4",
        "setuptools>=77",
    ],
    "check": [
        "import-linter>=2.3",
        "mypy>=1.15",
        "ruff>=0.9",
        "types-aiofiles>=24.1",
        "types-psutil>=6.1",
        "types-waitress>=3",
    ],
    "bench": [
        "celery[redis]>=5.5",
        "dask[distributed]>=2025.1",
        "hyperqueue>=0.21",
        "parsl>=2025.1",
        "rq>=2",
    ],
    "docs": [
        "mkdocs>=1.6,<2",
        "mkdocs-material>=9.7",
        "mkdocstrings-python>=2",
        "pymdown-extensions>=10",
    ],
}

# Build tools run this file as a script. Were it run on import, setuptools would take it for a
# module of the package: script_name, which they set otherwise, is what keeps it out of the wheel.
if __name__ == "__main__":
    setup(
        script_name="setup.py",
        name="jobscribe",
        version=version(),
        description="Runs computations for a web application: a supervisor, agents, and every step a durable event",
        long_description=readme(),
        long_description_content_type="text/markdown",
        classifiers=[
            "Operating System :: POSIX :: Linux",
            "Programming Language :: Python :: 3",
            "Programming Language :: Python :: 3.11",
            "Programming Language :: Python :: 3.12",
            "Programming Language :: Python :: 3.13",
            "Programming Language :: Python :: 3.14",
            "Typing :: Typed",
        ],
        python_requires=">=3.11",
        package_dir={"jobscribe": "."},
        packages=packages(),
        package_data={
            "jobscribe": ["py.typed", "etc/systemd/*", "docs/*.md"],
            "jobscribe.service.site": ["*.yml"],
            "jobscribe.web": ["static/*", "static/app/*"],
        },
        install_requires=AGENT + SERVER,
        extras_require=EXTRAS,
        entry_points={"console_scripts": ["jobscribe = jobscribe.cli.main:main"]},
        zip_safe=False,
    )
