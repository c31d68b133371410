"""The documentation: its site lists every page and builds without a warning, and every link leads
somewhere.

The content of single pages is tested where their subject is tested.
"""

import os
import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "etc/docs/mkdocs.yml"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for folder in ("docs", "etc", "tests") for page in (ROOT / folder).rglob("*.md")),
    ]
)
#: Files whose comments and messages refer to pages.
SOURCES = sorted(
    path
    for folder in [
        *(module.parent for module in ROOT.glob("*/__init__.py")),
        ROOT / "etc",
        ROOT / "tests",
    ]
    for path in folder.rglob("*")
    if path.suffix in (".py", ".sh", ".js", ".toml", ".yml", ".service")
)
README_LINES, COLUMNS = 120, 100


class Loader(yaml.SafeLoader):
    """YAML loader for MkDocs configurations that ignores values with Python tags."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def listed(nav: Any) -> list[str]:
    """Return the paths of all pages in a part of the navigation, in order."""
    match nav:
        case str():
            return [nav]
        case dict():
            return [path for part in nav.values() for path in listed(part)]
        case _:
            return [path for part in nav for path in listed(part)]


def prose(page: Path) -> str:
    """Return the text of a page without its blocks of code."""
    return re.sub(
        r"^ *(```+|~~~+).*?^ *\1 *$",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *#*$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        same = sum(
            anchor == slug or re.fullmatch(rf"{re.escape(slug)}-\d+", anchor) is not None
            for anchor in found
        )
        found.add(f"{slug}-{same}" if same else slug)
    return found


def links(page: Path) -> list[str]:
    """Return the targets of the links in a page, without those to other sites."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return [
        target
        for target in re.findall(r"\]\(([^)\s]+)\)", text)
        if not re.match(r"[a-z]+:", target)
    ]


def test_the_navigation_lists_every_page_once() -> None:
    nav = listed(yaml.load(CONFIG.read_text(encoding="utf-8"), Loader)["nav"])
    assert sorted(nav) == sorted(path.relative_to(ROOT).as_posix() for path in PAGES)


def test_the_index_leads_to_every_page_of_docs() -> None:
    index = ROOT / "docs/index.md"
    named = {target.partition("#")[0] for target in links(index)}
    assert {path.name for path in index.parent.glob("*.md")} - named == {"index.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_to_a_file_and_an_anchor(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), (
            f"{link}: the anchors are {sorted(anchors(target))}"
        )


def test_pages_that_sources_name_are_there() -> None:
    named = {
        (page, path)
        for path in SOURCES
        for page in re.findall(r"\bdocs/[\w-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert sorted((page, str(path)) for page, path in named if not (ROOT / page).is_file()) == []


def test_sections_that_sources_name_are_there() -> None:
    found = set()
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        found |= {
            (page, section, path)
            for page, section in re.findall(
                r"\b(docs/[\w-]+\.md), ['\"]([A-Z][^'\"\n]+)['\"]", text
            )
        }
        found |= {
            (page, section, path)
            for section, page in re.findall(r"'([A-Z][^'\n]+)' in (docs/[\w-]+\.md)", text)
        }
    assert len(found) >= 4
    for page, section, path in found:
        headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
        assert any(section.lower() in heading.lower() for heading in headings), (
            path,
            page,
            section,
        )


def test_the_readme_is_short_and_wrapped() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= README_LINES
    assert [line for line in lines if len(line) > COLUMNS] == []


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="MkDocs is not installed: pip install '.[docs]'")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        CONFIG,
        "--site-dir",
        tmp_path,
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "python-api.html").read_text(encoding="utf-8")
    modules = re.findall(
        r"^::: (\S+)", (ROOT / "docs/python-api.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert modules and [name for name in modules if f'id="{name}"' not in reference] == []
    assert re.search(r'id="jobscribe\.client\.[\w.]+\.Client\.submit"', reference) and re.search(
        r'id="jobscribe\.apps\.[\w.]+\.App\.prepare"', reference
    )
    assert "docker" in (tmp_path / "search/search_index.json").read_text(encoding="utf-8")


def tags(html: str) -> Counter[str]:
    """Return the number of occurrences of each Markdown-generated element in the text."""
    return Counter(re.findall(r"<(ul|ol|li|pre|table|tr|blockquote|h\d|strong|em|img)\b", html))


def test_the_site_shows_lists_and_code_as_github_does() -> None:
    for package in ("mkdocs", "pymdownx"):
        pytest.importorskip(package, reason="MkDocs is not installed: pip install '.[docs]'")
    import markdown
    from markdown_it import MarkdownIt

    hooks = runpy.run_path(str(CONFIG.with_name("hooks.py")))
    github = MarkdownIt("commonmark").enable("table")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        site = markdown.markdown(
            hooks["as_python_markdown"](text),
            extensions=["tables", "sane_lists", "pymdownx.superfences"],
        )
        assert tags(site) == tags(github.render(text)), page
