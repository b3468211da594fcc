"""A page of docs/ as tests take it: its YAML documents, the files it asks for, its commands, run in a shell.

A fenced block whose first line is `# PATH` is a file that the reader creates. In a block of `console`, a line
after `$ ` is a command and what follows is its output, in which `...` stands for any text. Behind the comment
`<!-- output: example -->` the output is an example, which the run does not compare.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"

_BLOCK = re.compile(r"(?m)^(<!-- output: example -->\n)?```(\w+)\n(.*?)^```$", re.DOTALL)
_FILE = re.compile(r"\A# ([\w./-]+\.?\w*)\n")
_MARK = "the-command-has-ended"
_ASKS = ("curl ", "kubectl get ", "kubectl penstock status", "kubectl penstock why")
_SECONDS = 300.0
"""A command takes at most this long, and its output is looked at again for as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of a page.

    Attributes:
        example: whether that is an example.
    """

    line: str
    output: str
    example: bool


class Page:
    """One page, or some sections of it."""

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def of(cls, path: Path) -> Self:
        """The page in a file."""
        return cls(path.read_text())

    def sections(self, first: str, last: str) -> Page:
        """The sections from one heading to another, both included."""
        start = self.text.index(f"\n## {first}\n")
        end = self.text.find("\n## ", self.text.index(f"\n## {last}\n") + 1)
        return Page(self.text[start : end if end >= 0 else None])

    def blocks(self, language: str) -> Iterator[str]:
        """The fenced blocks of a language."""
        return (text for _, kind, text in _BLOCK.findall(self.text) if kind == language)

    def files(self) -> dict[str, str]:
        """The files that the reader creates, by path."""
        return {
            match[1]: text
            for _, kind, text in _BLOCK.findall(self.text)
            if kind != "console" and (match := _FILE.match(text))
        }

    def recipe(self, name: str) -> str:
        """The block behind the comment `<!-- recipe: NAME -->`."""
        _, mark, rest = self.text.partition(f"<!-- recipe: {name} -->\n```yaml\n")
        assert mark, name
        return rest.partition("```")[0]

    def documents(self) -> list[dict[str, Any]]:
        """All Kubernetes objects of the page."""
        documents = [document for text in self.blocks("yaml") for document in yaml.safe_load_all(text)]
        return [document for document in documents if isinstance(document, dict) and "apiVersion" in document]

    def commands(self) -> Iterator[Command]:
        """All commands of the page, in order."""
        for example, kind, text in _BLOCK.findall(self.text):
            if kind == "console":
                for line, output in re.findall(r"(?m)^\$ (.*)\n((?:(?!\$ ).*\n)*)", text):
                    while _is_open(line):
                        more, _, output = output.partition("\n")
                        line += f"\n{more}"
                    yield Command(line=line, output=output.strip(), example=bool(example))


def _is_open(line: str) -> bool:
    """Whether a command goes on in the next line: a quotation has not ended."""
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return True
    return False


class Shell:
    """One bash in which commands run one after another, as a reader types them; a context manager.

    Args:
        replaced: text of commands and outputs that is different here, such as ports.
    """

    def __init__(self, folder: Path, replaced: Mapping[str, str], **environment: str) -> None:
        self._replaced = dict(replaced)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=os.environ | {"PATH": path} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._said = ""
        self._news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._said += line
                self._news.notify_all()

    def run(self, command: Command) -> str:
        """Run a command, check its exit code and its output, and return that."""
        line, output = self._here(command.line), self._here(command.output)
        wanted = re.compile(".*".join(map(re.escape, re.split(r"\.\.\.\n?", output))), re.DOTALL)
        deadline = time.monotonic() + _SECONDS
        while True:
            said, code = self._once(line, wanted)
            assert code == 0, f"{line}: exit code {code}: {said}"
            if command.example or wanted.fullmatch(said):
                return said
            # NB: a reader types slower than a process gets ready; what only asks may be asked again.
            again = line.startswith(_ASKS) and time.monotonic() < deadline
            assert again, f"{line}: expected {output!r}, found {said!r}"

    def _here(self, text: str) -> str:
        # NB: in one pass: a port that was put in may contain another of the page's.
        wanted = "|".join(map(re.escape, self._replaced)) or "(?!)"
        return re.sub(wanted, lambda match: self._replaced[match[0]], text)

    def _once(self, line: str, wanted: re.Pattern[str]) -> tuple[str, int]:
        assert self._process.stdin is not None
        with self._news:
            begin = len(self._said)
            self._process.stdin.write(f"{line}\necho; echo {_MARK} $?\n")
            self._process.stdin.flush()
            ended = re.compile(rf"(?m)^{_MARK} (\d+)$")

            def output() -> str:
                return ended.sub("", self._said[begin:]).strip()

            def done() -> bool:
                # What runs in the background says what it has to say a moment later.
                waits = line.endswith("&") and wanted.fullmatch(output()) is None
                return ended.search(self._said, begin) is not None and not waits

            assert self._news.wait_for(done, _SECONDS), f"{line}: not done, said {self._said[begin:]!r}"
            end = ended.search(self._said, begin)
            assert end is not None
            return output(), int(end[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Its own session: the processes that it has started are those of this group.
        os.killpg(self._process.pid, 9)
        self._process.communicate()
