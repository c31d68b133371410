"""The committed build of the pages (web/static/app) is that of the sources (web/pages)."""

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES, APP = ROOT / "web/pages", ROOT / "web/static/app"
#: The same list as in web/pages/build.mjs.
ROOTS = (
    "build.mjs",
    "package-lock.json",
    "package.json",
    "src",
    "tsconfig.json",
)


def sources() -> dict[str, bytes]:
    files = [
        f for name in ROOTS for f in ([PAGES / name], (PAGES / name).rglob("*"))[name == "src"]
    ]
    found = {os.path.relpath(f, PAGES): f.read_bytes() for f in files if f.is_file()}
    return {name: found[name] for name in sorted(found)}


def test_the_build_is_that_of_the_sources() -> None:
    digest = hashlib.sha256()
    for name, content in sources().items():
        digest.update(f"{name}\n{len(content)}\n".encode() + content)
    assert (APP / "sources.sha256").read_text().strip() == digest.hexdigest(), (
        "web/pages has changed since web/static/app was built; run: make pages-build"
    )


def test_the_build_is_complete_and_asks_no_other_host() -> None:
    manifest = json.loads((APP / "manifest.json").read_text())
    names = {f.name for f in APP.iterdir()}
    named = {manifest["script"], manifest["style"], manifest["icon"], *manifest["preload"]}
    assert named < names
    allowed = ("http://www.w3.org/", "http://localhost", "https://github.com/")  # never asked
    for name in names:
        text = (APP / name).read_text()
        assert set(re.findall(r"part-\w+\.js", text)) <= names
        urls = re.findall(r"https?://[\w.-]+/?", text)
        assert [u for u in urls if not u.startswith(allowed)] == []


def test_no_selector_is_in_two_stylesheets() -> None:
    """All stylesheets are one file in the build: a class of one page must not change another page."""
    places: dict[str, set[str]] = {}
    for file in sorted((PAGES / "src").rglob("*.css")):
        text = re.sub(r"/\*.*?\*/", "", file.read_text(), flags=re.DOTALL)
        for selectors in re.findall(r"([^{};@]+)\{", text):
            for selector in selectors.split(","):
                if selector.strip().startswith("."):
                    places.setdefault(" ".join(selector.split()), set()).add(file.name)
    assert len(places) > 300
    assert {s: sorted(files) for s, files in places.items() if len(files) > 1} == {}


def test_dependencies_have_exact_versions() -> None:
    package = json.loads((PAGES / "package.json").read_text())
    versions = package["dependencies"] | package["devDependencies"]
    assert versions and all(re.fullmatch(r"\d+\.\d+\.\d+", v) for v in versions.values())


@pytest.mark.process
def test_a_build_from_the_same_sources_has_the_same_bytes(tmp_path: Path) -> None:
    if shutil.which("node") is None or not (PAGES / "node_modules/esbuild").is_dir():
        pytest.skip("node or web/pages/node_modules is missing; `make pages-build` installs it")
    subprocess.run(["node", PAGES / "build.mjs", tmp_path / "app"], check=True, timeout=60)
    built = {f.name: f.read_bytes() for f in (tmp_path / "app").iterdir()}
    assert built == {f.name: f.read_bytes() for f in APP.iterdir()}
