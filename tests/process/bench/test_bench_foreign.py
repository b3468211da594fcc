"""Other projects' sidecars: a profile says how to start one; one that does not start is reported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench import foreign, processes
from bench.peers.catalogue import PEERS
from bench.venvs import NotInstalledError
from devcluster import programs
from devcluster.errors import DevclusterError

# What passes for somebody else's sidecar: our own model on the port that it is told, if it is told all.
PROGRAM = """#!{python}
import os, sys
assert sys.argv[1:] == ["--batch=7", "--model=" + os.environ["MODEL"]], sys.argv
os.execv(sys.executable, [sys.executable, "-m", "bench.model", os.environ["PORT"], "0", "0"])
"""

PROFILE = """
label = "Somebody's"
arguments = ["--batch={max_batch}", "--model={model_port}"]
path = "/v1/models/bench:predict"
[environment]
PORT = "{listen_port}"
MODEL = "{model_port}"
"""


@pytest.fixture
def profile(tmp_path: Path) -> foreign.Profile:
    program = tmp_path / "theirs"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    (tmp_path / "theirs.toml").write_text(PROFILE)
    return foreign.read(str(tmp_path / "theirs.toml")).at(program)


def test_a_program_is_started_as_its_profile_says(profile: foreign.Profile) -> None:
    """Ports and the batch's size stand in arguments and environment; it is up when it answers rightly."""
    core = min(os.sched_getaffinity(0))
    with profile.serve(processes.Server(port=4711, pid=0), core=core, max_batch=7) as server:
        assert processes.batch_sizes(server) == {1: 1}
        assert server.path == "/v1/models/bench:predict"


def test_a_program_that_ends_is_told_with_its_words(profile: foreign.Profile) -> None:
    core = min(os.sched_getaffinity(0))
    with (
        pytest.raises(processes.DidNotStartError, match="AssertionError"),
        profile.serve(processes.Server(port=4711, pid=0), core=core, max_batch=7 + 1),
    ):
        pytest.fail("it started")


def test_a_command_line_alone_is_a_profile() -> None:
    profile = foreign.of_command("/opt/agent --port={listen_port} 'a b'", path="/p")
    assert profile == foreign.Profile(
        label="agent", command=("/opt/agent", "--port={listen_port}", "a b"), path="/p"
    )


@pytest.mark.parametrize("name", sorted(path.stem for path in foreign.PROFILES.glob("*.toml")))
def test_our_profiles_are_of_programs_that_are_pinned(name: str) -> None:
    """Each place in them is one that is filled, each program one that its component makes."""
    profile = foreign.read(name)
    assert profile.binary in programs.COMPONENTS[profile.component].binaries
    assert profile.version.startswith("v")
    places = dict.fromkeys(("listen_port", "model_port", "admin_port", "max_batch"), 1)
    text = " ".join([*profile.command, *profile.environment.values()])
    filled = foreign._filled(text, places)
    assert "_port" not in filled
    assert "{listen_port}" in text
    assert "{model_port}" in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "label = 1",
        "label = [",
        'other = "x"' + PROFILE,
        PROFILE.replace('["--', '"').replace('}"]', '}"'),
        None,
    ],
)
def test_a_profile_that_cannot_be_used_is_told_with_those_there_are(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "p.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(foreign.ProfileError, match="kserve-agent, queue-proxy"):
        foreign.read(str(path))


def test_a_peer_that_cannot_be_built_is_one_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Go, or its modules out of reach: the bench goes on without it and says why."""

    def fail(*_: str) -> None:
        raise DevclusterError(
            "building kserve-agent failed:\ngo: github.com/kserve/kserve: dial tcp: no route"
        )

    monkeypatch.setattr(programs, "ensure", fail)
    with pytest.raises(NotInstalledError, match=r"not built: go: .*kserve: dial tcp: no route"):
        PEERS["kserve-agent"].ensure()
