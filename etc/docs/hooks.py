"""MkDocs hooks for this repository: which files the site has, and how their Markdown is read.

A file keeps its path in the repository as its source path, so a link works in the site and on
GitHub alike. Nothing here knows single pages: mkdocs.yml lists them.
"""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
#: All pages of the site, as patterns.
PAGES = ("docs/**/*.md", "*.md", "tests/**/*.md", "etc/**/*.md")

_LINK = re.compile(r"\]\(([^)\s#]+)")
_FENCE = re.compile(r" *((`{3,}|~{3,})\w*)")
_ITEM = re.compile(r" *([*+-]|\d+[.)]) ")


@event_priority(100)  # before mkdocstrings reads its configuration
def on_config(config: Any) -> Any:
    """Let mkdocstrings read a copy of the package jobscribe.

    The folder that is the package also holds .venv and build, and mkdocstrings would search all of
    them.
    """
    config.extra["packages"] = folder = tempfile.TemporaryDirectory(prefix="jobscribe-docs-")
    package = Path(folder.name) / "jobscribe"
    package.mkdir()
    shutil.copy(ROOT / "__init__.py", package)
    for module in ROOT.glob("*/__init__.py"):
        shutil.copytree(
            module.parent,
            package / module.parent.name,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [folder.name]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Replace the files that MkDocs found in docs/ with the files of the site, named by their paths
    in the repository.
    """
    pages = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    made = Files(
        [
            _file(path, config)
            for path in sorted(pages | {target for page in pages for target in _linked(page)})
        ]
    )
    for file in files:
        if file.generated_by or not file.abs_src_path.startswith(
            str(ROOT / "docs")
        ):  # files of the theme and of plugins
            made.append(file)
    return made


def on_page_markdown(markdown: str, **_: Any) -> str:
    return as_python_markdown(markdown)


def on_post_build(config: Any) -> None:
    config.extra["packages"].cleanup()


def as_python_markdown(text: str) -> str:
    """Rewrite lists and code blocks so that Python-Markdown, which MkDocs uses, reads them as
    GitHub does.

    Python-Markdown needs an empty line before a list, four spaces before a block that belongs to an
    item, and one word at most after the fence of a code block.
    """
    out: list[str] = []
    fence, shift, in_list = "", 0, False
    for line in text.splitlines():
        if fence:
            out.append(" " * shift + line if line else line)
            fence = "" if line.strip() == fence else fence
            continue
        indent = len(line) - len(line.lstrip())
        after_empty = not out or not out[-1].strip()
        if _ITEM.match(line):
            if not in_list and not after_empty:
                out.append("")
            in_list = True
        elif line and indent == 0 and (after_empty or line.startswith("#")):
            in_list = False
        shift = 4 - indent if in_list and indent in (2, 3) else 0
        if opened := _FENCE.match(line):
            line, fence = opened[0], opened[2]
        out.append(" " * shift + line)
    return "\n".join(out) + "\n"


def _linked(page: Path) -> set[Path]:
    """Return the files of the repository that this page links to."""
    targets = (
        page.parent / target
        for target in _LINK.findall(page.read_text(encoding="utf-8"))
        if ":" not in target
    )
    return {target.resolve() for target in targets if target.is_file()}


def _file(path: Path, config: Any) -> File:
    """Return a file of the site. The content of docs/ is at the top of the site, and a README.md is
    the page of its folder.
    """
    name = path.relative_to(ROOT).as_posix()
    file = File(name, str(ROOT), config.site_dir, config.use_directory_urls)
    file.dest_uri = "overview.html" if name == "README.md" else file.dest_uri.removeprefix("docs/")
    return file
