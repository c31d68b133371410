"""The registry finds apps by name, imports them on demand, and reports an unusable app with a clear
error.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import jobscribe
from jobscribe.apps import registry
from jobscribe.apps.app import AppError
from jobscribe.apps.myapp import plugin
from jobscribe.protocol.errors import Refusal

TYPES = Path(jobscribe.__file__).parent / ".types"


def python(code: str, *paths: Path) -> str:
    """Return the stdout of this code in a separate interpreter."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, (TYPES, *paths)))}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def modules(tmp_path: Path) -> Iterator[Path]:
    """Create a folder of importable modules."""
    sys.path.insert(0, str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in set(sys.modules) - before:
        del sys.modules[name]
    registry._load.cache_clear()


@pytest.mark.process
def test_what_there_is_is_named_without_importing_any_of_it() -> None:
    said = python(
        "import sys; from jobscribe.apps import registry; print(registry.names(('other=no_such_module:app',)));"
        "print([m for m in sys.modules if m.startswith('jobscribe.apps.') or m == 'numpy'])"
    )
    assert said.splitlines() == [
        "('command', 'heat', 'myapp', 'other')",
        "['jobscribe.apps.app', 'jobscribe.apps.registry']",
    ]


@pytest.mark.process
def test_loading_heat_does_not_need_numpy() -> None:
    code = "import sys; sys.modules['numpy'] = None; from jobscribe.apps import registry; print(registry.load('heat').name)"
    assert python(code) == "heat\n"


@pytest.mark.process
def test_an_installed_package_offers_its_apps(tmp_path: Path) -> None:
    info = tmp_path / "crack-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: crack\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[jobscribe.apps]\ncrack = crack_app:the.app\nmyapp = crack_app:the.app\n"
    )
    (tmp_path / "crack_app.py").write_text(
        "import types, msgspec\nfrom jobscribe.apps import myapp\nthe = types.SimpleNamespace(app=msgspec.structs.replace(myapp.app, name='crack'))\n"
    )
    code = "from jobscribe.apps import registry as r; print(r.names(), r.load('crack').name, r.load('myapp').version)"
    assert python(code, tmp_path) == "('command', 'crack', 'heat', 'myapp') crack 1\n"


def test_what_the_configuration_names_wins(modules: Path) -> None:
    (modules / "mine.py").write_text(
        "import msgspec\nfrom jobscribe.apps import myapp\nap = msgspec.structs.replace(myapp.app, version='mine')\n"
    )
    assert registry.load("myapp", ["myapp=mine:ap"]).version == "mine"
    assert registry.load("myapp").version == plugin.app.version
    assert registry.load("myapp", ["myapp=mine:ap"]) is registry.load("myapp", ("myapp=mine:ap",))


@pytest.mark.parametrize("name", ["ghost", "command", "", "../x", "os"])
def test_an_unknown_app_is_refused_and_the_known_ones_are_named(name: str) -> None:
    with pytest.raises(Refusal) as e:
        registry.load(name, ["other=no_such_module:app"])
    assert (e.value.code, e.value.http) == ("unknownApp", 404)
    assert e.value.sentence == f"there is no app {name!a}; the apps are: heat, myapp, other"


@pytest.mark.parametrize("text", ["", "x", "x=", "x=module", "x=:app", "=module:app", "x=module:"])
def test_a_list_that_is_none_is_a_matter_of_the_configuration(text: str) -> None:
    with pytest.raises(Refusal) as e:
        registry.names([text])
    assert e.value.code in ("badConfig", "badRequest")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise OSError('no licence')", "cannot be imported: OSError: no licence"),
        ("import sys; sys.exit(0)", "cannot be imported: it calls exit()"),
        ("def app(:", "cannot be imported: SyntaxError"),
        ("other = 1", "cannot be imported: AttributeError"),
        ("app = {}", "cannot be used: it is 'dict', not an App"),
        ("from jobscribe.apps.myapp.plugin import app", "cannot be used: its name is 'myapp'"),
        (
            "import msgspec\nfrom jobscribe.apps import myapp\napp = msgspec.structs.replace(myapp.app, name='bad', models=())",
            "it has no compute models",
        ),
        (
            "import msgspec\nfrom jobscribe.apps import myapp\napp = msgspec.structs.replace(myapp.app, name='bad', result=None)",
            "heightWeightReport is sequential, but the app has no function result",
        ),
        (
            "import msgspec\nfrom jobscribe.apps import heat\napp = msgspec.structs.replace(heat.app, name='bad', frame=None)",
            "heatAnimation is parallel, but the app has no function frame",
        ),
        (
            "import msgspec\nfrom jobscribe.apps import myapp\napp = msgspec.structs.replace(myapp.app, name='bad', models=myapp.app.models * 2)",
            "two of its compute models have the same name",
        ),
        (
            "import msgspec\nfrom jobscribe.apps.myapp import plugin as myapp\nm = msgspec.structs.replace(myapp.MODEL, name='a/b')\n"
            "app = msgspec.structs.replace(myapp.app, name='bad', models=(m,))",
            "computeModel must be a letter",
        ),
    ],
)
def test_an_app_that_cannot_be_used_is_refused_and_the_cause_is_kept(
    modules: Path, source: str, said: str
) -> None:
    (modules / "bad_app.py").write_text(source + "\n")
    with pytest.raises(Refusal) as e:
        registry.load("bad", ["bad=bad_app:app"])
    assert e.value.code == "appFailed"
    assert e.value.sentence.startswith("the app bad (bad_app:app) ") and said in e.value.sentence
    assert ("cannot be imported" in said) == (e.value.__cause__ is not None)


# ---- the digest


def _digest(models: dict[str, Any] | None = None, lib: Any = None, app: Any = plugin.app) -> str:
    return registry.digest(
        app,
        "heightWeightReport",
        {"models": {"heightWeightReport": models or {}}, "report": "x"},
        lib,
    )


def test_a_digest_is_that_of_what_decides_the_result() -> None:
    same = _digest()
    assert len(same) == 32 and same == _digest({"breed": "Labrador", "years": 2}) == _digest(
        {"noField": 1}
    )
    assert same != _digest({"breed": "Pug"})
    assert same != _digest(app=msgspec.structs.replace(plugin.app, version="2"))


def test_a_library_file_counts_only_where_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "dogs.json").write_text("[]")
    before = _digest({"dog": "Rex"}, tmp_path)
    assert before == _digest({"dog": "Rex"}, {"dogs.json": hashlib.sha256(b"[]").hexdigest()})
    unused = _digest({}, tmp_path)
    (tmp_path / "dogs.json").write_text("[ ]")
    assert before != _digest({"dog": "Rex"}, tmp_path)
    assert unused == _digest({}, tmp_path)


@pytest.mark.parametrize("lib", [None, {}, Path("/nowhere")])
def test_a_library_file_that_is_missing_is_named(lib: Any) -> None:
    with pytest.raises(AppError, match=r"there is no file 'dogs.json' in your library"):
        _digest({"dog": "Rex"}, lib)


def test_a_library_file_is_one_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "secret").write_text("x")
    for name in ("../secret", "..", "", str(tmp_path / "secret")):
        app = msgspec.structs.replace(plugin.app, lib_files=lambda data, name=name: (name,))
        with pytest.raises(AppError):
            _digest({}, tmp_path / "lib", app)


def test_parameters_that_are_refused_or_fail() -> None:
    with pytest.raises(AppError, match=r"models.heightWeightReport.breed \(Breed\) must be one of"):
        _digest({"breed": "Cat"})
    for parameters, said in (
        (
            lambda data, model: 1 / 0,
            "myapp failed in parameters: ZeroDivisionError: division by zero",
        ),
        (lambda data, model: {"a": float("nan")}, "myapp failed in parameters: ValueError"),
        (lambda data, model: {"a": {1}}, "myapp failed in parameters: TypeError"),
    ):
        with pytest.raises(Refusal, match=said) as e:
            _digest(app=msgspec.structs.replace(plugin.app, parameters=parameters))
        assert e.value.code == "appFailed" and e.value.__cause__ is not None
