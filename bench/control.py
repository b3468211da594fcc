"""`python -m bench.control`: the operator against a real apiserver with a thousand backends.

Makes a cluster of its own, whose nodes and pods exist in the API alone (kwok), measures there
(`bench.control_inside`) and removes it. Writes `bench/results/control.json` and `control.md`. One run takes
less than ten minutes; `--backends 100` writes nothing and takes less than two.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import control_reports
from bench.control_table import TARGETS, page
from bench.run import machine
from devcluster import programs
from devcluster.cluster import Cluster
from devcluster.network import API_PORT
from devcluster.paths import REPOSITORY

RESULTS = Path(__file__).parent / "results"
FULL = 1000
CLUSTER = "penstock-bench"


def kwok_command(kubeconfig: Path) -> list[str]:
    """The command of kwok, for nodes with our annotation only.

    Args:
        kubeconfig: the administrator's, inside the cluster's network.
    """
    folder = programs.COMPONENTS["kwok"].folder
    stages = sorted(folder.glob("*.yaml"))
    return [
        str(folder / "kwok"),
        f"--kubeconfig={kubeconfig}",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        "--cidr=10.1.0.0/16",
        # NB: without it no lease is renewed, and after 40 s every node is lost.
        "--node-lease-duration-seconds=40",
        "--v=WARN",
        *(f"--config={stage}" for stage in stages),
    ]


def measure(cluster: Cluster, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Prepare the cluster and have everything measured inside its network.

    Args:
        cluster: fresh and up.
        arguments: the command line's.
        folder: for logs.

    Raises:
        subprocess.CalledProcessError: it failed and has printed why.
    """
    cluster.kubectl("apply", "--server-side", "-f", str(REPOSITORY / "crds"))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")
    # A real node would have to run pods whose images do not exist.
    cluster.kubectl("cordon", cluster.node.name)
    asked = {
        "kubeconfig": str(cluster.kubeconfig),
        "pki": str(cluster.state.pki),
        "server": f"https://{cluster.node.address}:{API_PORT}",
        "kwok": kwok_command(cluster.kubeconfig),
        "folder": str(folder),
        **{key: value for key, value in vars(arguments).items() if key != "keep"},
    }
    done = subprocess.run(
        [*cluster.exec_prefix, sys.executable, "-m", "bench.control_inside"],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    results: dict[str, Any] = json.loads(done.stdout)
    return results


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backends", type=int, default=FULL)
    parser.add_argument("--endpoints", type=int, help="default: half as many as backends")
    parser.add_argument("--namespaces", type=int, default=10, help="that they are spread over")
    parser.add_argument("--changes", type=int, default=100, help="single changes of each kind")
    parser.add_argument(
        "--report-pods", type=int, help="that report every second; default: twice as many as backends"
    )
    parser.add_argument("--rest", type=float, default=20.0, help="seconds of watching the operator at rest")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write the results, whatever the size")
    parser.add_argument("--keep", action="store_true", help="leave the cluster and the logs")
    arguments = parser.parse_args()
    if arguments.endpoints is None:
        arguments.endpoints = arguments.backends // 2
    if arguments.report_pods is None:
        arguments.report_pods = arguments.backends * 2
    programs.ensure("kwok")
    host = machine()
    reports = control_reports.figures(arguments.report_pods).document()
    cluster = Cluster(CLUSTER)
    cluster.down()
    cluster.up()
    folder = Path(tempfile.mkdtemp(prefix="penstock-control-"))
    try:
        results = measure(cluster, arguments, folder)
    except subprocess.CalledProcessError:
        print(f"the bench failed; logs are in {folder}", file=sys.stderr)
        return 1
    finally:
        if not arguments.keep:
            cluster.down()
    document = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": host,
        "asked": {
            key: getattr(arguments, key)
            for key in ("backends", "endpoints", "namespaces", "changes", "report_pods", "seed")
        },
        "targets": [{"key": key, "bound": bound, "what": what} for key, bound, what in TARGETS],
        "figures": results["figures"] | reports,
        "writes": results["writes"],
    }
    text = page(document)
    print(text)
    if arguments.backends == FULL or arguments.write:
        RESULTS.joinpath("control.json").write_text(json.dumps(document, indent=1) + os.linesep)
        RESULTS.joinpath("control.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
