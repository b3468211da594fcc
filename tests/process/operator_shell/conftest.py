"""What tests of a process beside the small apiserver share; `server` is each file's own."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock_operator.control import pki
from penstock_operator.control.rotation import DAY
from penstock_operator.kube.cluster import KubernetesCluster
from tests.support.processes.tiny_apiserver import TinyApiserver


@pytest.fixture
async def cluster(server: TinyApiserver, tmp_path: Path) -> AsyncIterator[KubernetesCluster]:
    config = tmp_path / "kubeconfig"
    config.write_text(server.kubeconfig())
    connected = await KubernetesCluster.connect(str(config), timeout=30)
    yield connected
    await connected.close()


@pytest.fixture(scope="module")
def authority() -> pki.Issued:
    return pki.make_authority(now=time.time(), life=DAY)
