"""What the page says of a reason is what docs/operations/repair.md says (`--update-golden` copies it)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from penstock_cli import remedies

ROOT = Path(__file__).parents[3]


def written() -> dict[str, tuple[str, str, str]]:
    """Group, meaning and remedy by reason, without Markdown."""
    page = (ROOT / "docs/operations/repair.md").read_text("utf-8")
    conditions = page.split("\n### ", 1)[1].split("\n## ", 1)[0]
    found: dict[str, tuple[str, str, str]] = {}
    for group in conditions.split("\n### "):
        for line in group.splitlines():
            if line.startswith("| `"):
                plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line.strip("| ")).replace("`", "")
                names, meaning, *remedy = re.split(r" \|(?: |$)", plain)
                # The page shows one reason at a time: what another row says stands in each.
                words = re.sub(r"do as for (\w+)", lambda other: found[other[1]][2], "".join(remedy))
                for name in names.split(", "):
                    found[name] = (group.splitlines()[0], meaning, words)
    return found


def test_the_pages_remedies_are_those_of_the_documentation(request: pytest.FixtureRequest) -> None:
    path = Path(remedies.__file__).with_suffix(".json")
    if request.config.getoption("--update-golden"):
        lines = [json.dumps({each: row}, ensure_ascii=False)[1:-1] for each, row in written().items()]
        path.write_text("{{\n{}\n}}\n".format(",\n".join(lines)), "utf-8")
        remedies.known.cache_clear()
    assert written() == remedies.known()
    assert remedies.of("ImagePullFailed") == (
        "the kubelet cannot pull an image (shown 10 to 15 s after its first failure)",
        "correct the image's name, make the registry reachable, or set imagePullSecrets",
    )
    assert remedies.of("Serving") == ("as it should be", "")
    assert remedies.of("<b>") == ("", "")
