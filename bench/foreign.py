"""Sidecars of others: how each is started before the bench's model.

A profile, `sidecars/<name>.toml`, says it of a program: its arguments, its environment, the path that is
posted to. `{listen_port}`, `{model_port}`, `{admin_port}` (one more that is free) and `{max_batch}` stand for
what is known when it starts. Where the program is one that we pin (`component`), it is built when missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from bench import processes
from bench.venvs import NotInstalledError
from devcluster import programs
from devcluster.errors import DevclusterError

PROFILES = Path(__file__).parent / "sidecars"
_PLACE = re.compile(r"\{(listen_port|model_port|admin_port|max_batch)\}")
_START_SECONDS = 30.0
_STOP_SECONDS = 0.5
"""Both drain for half a minute after a SIGTERM; nothing is in flight any more."""


class ProfileError(Exception):
    """A profile that cannot be used; says why."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How to start another project's sidecar.

    Args:
        label: how people write it.
        command: the program and its arguments, with places; of a pinned program the arguments alone.
        path: what predictions are posted to.
        environment: its environment variables, with places.
        component: the pinned component that it comes from, as in `devcluster.programs`; empty = none.
        binary: the program's name in that component.
    """

    label: str
    command: tuple[str, ...]
    path: str
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    component: str = ""
    binary: str = ""

    @property
    def version(self) -> str:
        """The version that is pinned; empty where none is."""
        return programs.COMPONENTS[self.component].version if self.component else ""

    def ensure(self) -> None:
        """Build the program where it is pinned and missing.

        Raises:
            NotInstalledError: it could not be built.
        """
        if self.component:
            try:
                programs.ensure(self.component)
            except DevclusterError as why:
                raise NotInstalledError(f"not built: {_last_line(why)}") from why

    def at(self, binary: Path) -> Profile:
        """The same with a program that is there already.

        Args:
            binary: the program.
        """
        return dataclasses.replace(self, command=(str(binary), *self.command), component="", binary="")

    @contextlib.contextmanager
    def serve(
        self, behind: processes.Server, *, core: int, max_batch: int = 32
    ) -> Iterator[processes.Server]:
        """Serve a model with it, on one core.

        Args:
            behind: the model.
            core: where it runs.
            max_batch: items in a batch, where it makes any.

        Raises:
            NotInstalledError: it could not be built.
            DidNotStartError: it gave no right answer in time.
        """
        self.ensure()
        places = {
            "listen_port": processes.free_port(),
            "model_port": behind.port,
            "admin_port": processes.free_port(),
            "max_batch": max_batch,
        }
        first = (str(programs.program(self.component, self.binary)),) if self.component else ()
        command = [*first, *(_filled(word, places) for word in self.command)]
        environment = {name: _filled(word, places) for name, word in self.environment.items()}
        with processes.running(command, core=core, env=environment, grace=_STOP_SECONDS) as (process, log):
            server = processes.Server(port=places["listen_port"], pid=process.pid, path=self.path)
            processes.await_answer(server, process, log, seconds=_START_SECONDS)
            yield server


class _Told(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The content of a profile's file."""

    label: str
    arguments: tuple[str, ...]
    path: str
    environment: dict[str, str] = {}
    component: str = ""
    binary: str = ""


def read(name: str) -> Profile:
    """A profile by its name in `sidecars/`, or by its file.

    Args:
        name: such as `kserve-agent`, or a path that ends in `.toml`.

    Raises:
        ProfileError: the file is missing, or is not a profile.
    """
    path = Path(name) if name.endswith(".toml") else PROFILES / f"{name}.toml"
    try:
        profile = msgspec.convert(tomllib.loads(path.read_text()), _Told)
    except (OSError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        known = ", ".join(sorted(path.stem for path in PROFILES.glob("*.toml")))
        raise ProfileError(f"profile {name}: {error}; there are {known}") from error
    return Profile(
        label=profile.label,
        command=profile.arguments,
        path=profile.path,
        environment=profile.environment,
        component=profile.component,
        binary=profile.binary,
    )


def of_command(template: str, *, path: str) -> Profile:
    """A profile of a command line alone.

    Args:
        template: the command line, with places.
        path: what predictions are posted to.
    """
    words = tuple(shlex.split(template))
    return Profile(label=Path(words[0]).name, command=words, path=path)


def _filled(text: str, places: Mapping[str, int]) -> str:
    return _PLACE.sub(lambda match: str(places[match[1]]), text)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
