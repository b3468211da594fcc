"""Ray Serve's autoscaler of one deployment, in simulated time and without a cluster.

The first line of standard input is an `autoscaling_config` in JSON. Each further line is what there is at a
time:

    {"at": 12.0, "replicas": 4, "held": 0, "ready": {"model-1": 21}}

seconds, the target of replicas, requests that wait for a replica, and those in each running one. There is to
be one a second. The answer to each is a line with the replicas that Ray's controller decides for. As in Ray,
the handle records its requests and sends them to the controller at intervals of its own.
"""

import json
import sys
import time

from ray.serve._private.autoscaling_state import DeploymentAutoscalingState
from ray.serve._private.common import (
    RUNNING_REQUESTS_KEY,
    DeploymentHandleSource,
    DeploymentID,
    HandleMetricReport,
    ReplicaID,
    TimeStampedValue,
)
from ray.serve._private.config import DeploymentConfig, ReplicaConfig
from ray.serve._private.constants import RAY_SERVE_AUTOSCALING_METRIC_RECORD_INTERVAL_FACTOR
from ray.serve._private.deployment_info import DeploymentInfo

MODEL = DeploymentID(name="model", app_name="bench")


class Handle:
    """What the handle of the simulated router records and reports."""

    def __init__(self, config):
        self.config = config
        self.every = min(
            config.look_back_period_s * RAY_SERVE_AUTOSCALING_METRIC_RECORD_INTERVAL_FACTOR,
            config.metrics_interval_s,
        )
        self.recorded = self.pushed = -float("inf")
        self.queued = []
        self.running = {}

    def record(self, now, held, ready):
        """Take the requests of now; returns a report when one is due."""
        if now - self.recorded >= self.every:
            self.recorded = now
            self.queued.append(TimeStampedValue(now, held))
            for name, load in ready.items():
                self.running.setdefault(name, []).append(TimeStampedValue(now, load))
        since = now - self.config.look_back_period_s
        self.queued = [point for point in self.queued if point.timestamp >= since]
        kept = {
            name: [point for point in points if point.timestamp >= since]
            for name, points in self.running.items()
            if name in ready
        }
        self.running = {name: points for name, points in kept.items() if points}
        if now - self.pushed < self.config.metrics_interval_s:
            return None
        self.pushed = now
        return HandleMetricReport(
            deployment_id=MODEL,
            handle_id="router",
            actor_id="router",
            handle_source=DeploymentHandleSource.UNKNOWN,
            queued_requests=list(self.queued),
            metrics={RUNNING_REQUESTS_KEY: {full_id(name): list(s) for name, s in self.running.items()}},
            timestamp=now,
        )


def replica(name):
    """Its id."""
    return ReplicaID(name, MODEL)


def full_id(name):
    """Its id, as reports have it."""
    return replica(name).to_full_id_str()


def main():
    """Answer each line."""
    settings = DeploymentConfig(
        autoscaling_config=json.loads(sys.stdin.readline()), max_ongoing_requests=1000
    )
    config = settings.autoscaling_config
    state = DeploymentAutoscalingState(MODEL)
    handle = Handle(config)
    began = 1_700_000_000.0  # any time that is the same in each run: Ray rounds times
    now = [began]
    time.time = lambda: now[0]  # Ray reads it for its windows and delays.
    time.monotonic = lambda: now[0]
    registered = False
    for line in sys.stdin:
        look = json.loads(line)
        now[0] = began + look["at"]
        if not registered:
            registered = True
            info = DeploymentInfo(
                deployment_config=settings,
                replica_config=ReplicaConfig.create(lambda: None),
                start_time_ms=0,
                deployer_job_id="",
                version="1",
            )
            state.register(info, look["replicas"])
        report = handle.record(now[0], look["held"], look["ready"])
        if report is not None:
            state.record_request_metrics_for_handle(report)
        state.update_running_replica_ids([replica(name) for name in look["ready"]])
        print(state.get_decision_num_replicas(look["replicas"]), flush=True)


main()
