"""A dry run prints what the operator would write, and writes nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock_operator.dry_run import documents, dry_run
from penstock_operator.kinds import CONFIG_MAP, DEPLOYMENT, SERVICE
from penstock_operator.kube.dry_cluster import DryCluster
from tests.support.clocks.hand_clock import HandClock
from tests.support.processes.tiny_apiserver import TinyApiserver
from tests.support.worlds.memory_cluster import MemoryCluster
from tests.support.worlds.operator_harness import RENDER, Harness, backend, endpoint, policy, split

Obj = dict[str, Any]


PLAIN = replace(RENDER, report_url="http://operator:8015")
"""Over TLS a ConfigMap also holds the authorities, which the harness has none of."""


async def look(cluster: MemoryCluster) -> DryCluster:
    return await dry_run(cluster, render=PLAIN, clock=HandClock(), log=lambda *_, **__: None)


def verbs(dry: DryCluster) -> list[tuple[str, str, str]]:
    return sorted((write.verb, key.kind, key.name) for key, write in dry.writes.items())


async def converged() -> Harness:
    harness = Harness(render=PLAIN)
    for obj in (policy(), backend(batchPolicyRef="p", replicas=2), endpoint(), split(m=1)):
        harness.apply(obj)
    await harness.run()
    return harness


async def test_where_all_is_as_it_should_be_nothing_would_be_written() -> None:
    """And the look itself writes nothing."""
    harness = await converged()
    harness.cluster.writes.clear()
    dry = await look(harness.cluster)
    assert verbs(dry) == []
    assert harness.cluster.writes == []


async def test_what_is_shown_is_what_the_operator_then_writes() -> None:
    """Creations, changes, mended drift, deletions: the same objects, to the last field."""
    harness = await converged()
    harness.events = False
    harness.apply(backend(batchPolicyRef="p", replicas=1))
    harness.apply(policy(maxBatchSize=4))
    harness.apply(endpoint("f"))
    harness.cluster.edit(SERVICE, "n", "e", lambda live: live["spec"]["ports"][0].update(targetPort=1))
    harness.cluster.writes.clear()
    dry = await look(harness.cluster)
    assert harness.cluster.writes == []
    assert ("delete", "PodDisruptionBudget", "m-backend") in verbs(dry)
    assert ("create", "Service", "f") in verbs(dry)
    assert ("apply", "Deployment", "m-backend") in verbs(dry)
    sent: dict[tuple[str, str], Obj] = {}
    really = harness.cluster.apply

    async def apply(kind: Any, obj: Obj) -> Obj:
        sent[kind.kind, obj["metadata"]["name"]] = obj
        return await really(kind, obj)

    harness.cluster.apply = apply  # type: ignore[method-assign]
    fresh = await harness.restart()
    written = {(write[1], write[3]) for write in fresh.cluster.writes if write[0] in ("apply", "delete")}
    assert {(kind, name) for _, kind, name in verbs(dry)} == written
    for key, write in dry.writes.items():
        if write.verb != "delete":
            assert write.obj == sent[key.kind, key.name], key


async def test_documents_say_verb_and_manager_and_hold_no_secret() -> None:
    """YAML that kubectl reads; the secret of a pod template that is there is not repeated in a log."""
    harness = await converged()
    live = harness.cluster.find(DEPLOYMENT, "n", "m-backend")
    sidecar = live["spec"]["template"]["spec"]["initContainers"][0]
    secret = next(variable["value"] for variable in sidecar["env"] if "DRAIN" in variable["name"])
    harness.events = False
    harness.apply(backend(batchPolicyRef="p", replicas=1))
    dry = await look(harness.cluster)
    text = documents(dry.writes.values())
    assert secret not in text
    parts = text.split("---\n")[1:]
    assert len(parts) == len(dry.writes)
    for part, write in zip(parts, dry.writes.values(), strict=True):
        assert part.startswith(f"# verb: {write.verb}")
        assert ("# field manager: penstock\n" in part) == (write.verb != "delete")
        assert yaml.safe_load(part)["kind"] == write.obj["kind"]


async def test_a_strangers_object_is_told_and_not_written() -> None:
    """NameTaken, as the status would say."""
    harness = Harness()
    harness.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "n", "name": "e"},
                   "spec": {"ports": [{"port": 1}]}})  # fmt: skip
    harness.apply(backend())
    harness.apply(endpoint())
    dry = await look(harness.cluster)
    assert ("apply", "Service", "e") not in verbs(dry)
    assert [reason for _, reason in dry.problems] == ["NameTaken"]


# -- the process --------------------------------------------------------------------------------------------


async def run(*flags: str, stdin: str = "") -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "penstock_operator", *flags,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ},
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 150)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_against_a_live_apiserver_it_only_reads(tmp_path: Path) -> None:
    """No Lease, no patch, no event; exit code 0 after one pass."""
    async with TinyApiserver() as server:
        server.cluster.user_applies(backend())
        config = tmp_path / "kubeconfig"
        config.write_text(server.kubeconfig())
        code, out, err = await run("--dry-run", "--kubeconfig", str(config))
        assert code == 0, err
        assert {method for method, *_ in server.requests} == {"GET"}
        kinds = {document["kind"] for document in yaml.safe_load_all(out)}
        assert {"Deployment", "Service", "ConfigMap"} <= kinds
        server.fail[("GET", "deployments")] = [500] * 50
        code, out, err = await run("--dry-run", "--kubeconfig", str(config))
        assert (code, out) == (1, "")
        assert "dry run failed" in err


async def test_a_file_is_rendered_without_a_cluster() -> None:
    """From standard input, with objects of others and lists in it; twice the same bytes."""
    resources = [backend(replicas=2), {"apiVersion": "v1", "kind": "List", "items": [endpoint()]},
                 {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}}]  # fmt: skip
    text = yaml.safe_dump_all(resources)
    code, out, err = await run("--dry-run", "-f", "-", stdin=text)
    assert code == 0, err
    objects = {(obj["kind"], obj["metadata"]["name"]) for obj in yaml.safe_load_all(out)}
    assert {
        (DEPLOYMENT.kind, "m-backend"),
        (SERVICE.kind, "e"),
        (CONFIG_MAP.kind, "m-backend-settings"),
    } <= objects
    assert (CONFIG_MAP.kind, "other") not in objects
    assert (await run("--dry-run", "-f", "-", stdin=text))[:2] == (0, out)


@pytest.mark.parametrize(
    ("flags", "stdin", "code", "message"),
    [
        (["--dry-run", "--file", "/nowhere.yaml"], "", 2, "/nowhere.yaml"),
        (["--dry-run", "-f", "-"], "a: [", 2, "--file"),
        (["--dry-run", "-f", "-"], "just text", 2, "expected Kubernetes objects"),
        (["--file", "x.yaml"], "", 2, "only with --dry-run"),
        (["--dry-run", "-f", "-"], yaml.safe_dump({**backend(), "spec": {"model": {"port": "many"}}}), 1,
         "not valid"),
    ],
    ids=["no file", "no YAML", "no objects", "no dry run", "no resource"],
)  # fmt: skip
async def test_what_cannot_be_read_is_told_by_exit_code(
    flags: list[str], stdin: str, code: int, message: str
) -> None:
    """2 for a wrong flag, 1 for a resource that cannot be used: a CI step fails on both."""
    exit_code, _, err = await run(*flags, stdin=stdin)
    assert exit_code == code, err
    assert message in err


async def test_pods_stay_told_of_the_authorities_that_they_know() -> None:
    """The preview does not read the operator's Secret: what ConfigMaps hold now is taken as it is."""
    harness = await Harness(render=replace(RENDER, authorities="the authorities")).applied(backend())
    dry = await dry_run(harness.cluster, render=RENDER, clock=HandClock(), log=lambda *_, **__: None)
    assert verbs(dry) == []
