"""Hooks of mkdocs: the front page, the SDK's API, the decisions' list, and links to files outside docs/."""

import os
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
SOURCE = os.environ.get("SOURCE_URL", "")
"""Where the repository is; without it, a link to a file outside docs/ becomes plain text."""
FIRST_DECISION = "adr/0001-kopf-in-a-thread-of-its-own.md"
_FENCE = re.compile(r"^```([a-z]+) .*$", re.MULTILINE)
_LANGUAGES = ("console", "json", "python", "yaml")
_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]*|adr)(#[^)\s]*)?\)")


def on_config(config):
    """Add the decisions to the navigation."""
    decisions = sorted(path.name for path in (ROOT / "docs/adr").glob("*.md"))
    config.nav.append({"Decisions": [f"adr/{name}" for name in decisions]})
    return config


def on_files(files, config):
    """Add the page of the SDK's API: what `penstock` exports."""
    names = re.findall(
        r'^    "([A-Za-z_]+)",$', (ROOT / "sdk/penstock/__init__.py").read_text(), re.MULTILINE
    )
    text = "# The SDK's API\n\n" + "".join(f"::: penstock.{name}\n\n" for name in names)
    files.append(File.generated(config, "api.md", content=text))
    return files


def _front_page(index):
    """What the README says until it comes to this repository, and then all pages."""
    text, heading, _ = (ROOT / "README.md").read_text().partition("\n## The whole of it")
    if not heading:
        raise ValueError("README.md: expected the heading 'The whole of it', found none")
    return text.replace("(docs/", "(") + "\n" + index.partition("\n")[2]


def on_page_markdown(markdown, page, **_):
    """Let links lead to the repository where they leave docs."""
    if page.file.src_uri == "README.md":
        markdown = _front_page(markdown)
    here = posixpath.dirname(page.file.src_uri)

    def link(match):
        path = posixpath.normpath(posixpath.join("docs", here, match[2]))
        if path == "docs/adr":
            return f"[{match[1]}]({posixpath.relpath(FIRST_DECISION, here or '.')})"
        if path.startswith("docs/"):
            return match[0]
        if not (ROOT / path).exists():
            raise ValueError(f"{page.file.src_uri}: expected {path} in the repository, found none")
        return f"[{match[1]}]({SOURCE}/blob/main/{path}{match[3] or ''})" if SOURCE else match[1]

    # Tests read more than the language behind a fence, and mkdocs no more.
    markdown = _FENCE.sub(lambda match: f"```{match[1] if match[1] in _LANGUAGES else ''}", markdown)
    return _LINK.sub(link, markdown)
