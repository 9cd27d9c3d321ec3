"""Metrics of a job: from its processes, through the status of its workers, to /metrics."""

from __future__ import annotations

import re
import signal
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e import embedded, jobs
from e2e.cluster import Capability, Cluster
from e2e.observation import Observation

NODES = 4
WORKERS = ("digits-worker-0", "digits-worker-1")
STEP_SECONDS = "dlr_worker_step_duration_seconds"

Series = dict[tuple[str, str], float]
"""Values by metric, and by its one label besides the job's, or the worker's name."""


def scrape(cluster: Cluster, namespace: str) -> Series:
    """Return the series of this scenario's job; {} while no controller serves any."""
    assert isinstance(cluster, embedded.EmbeddedCluster)
    log = (cluster.home.logs / "controller.log").read_text()
    ports = re.findall(r"servers started .*metrics=(\d+)", log)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[-1]}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except (IndexError, OSError):
        return {}
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.pop("namespace", None) == namespace:
                del sample.labels["job_name"]
                sample.labels.pop("type", None)
                found[sample.name, "/".join(sample.labels.values())] = sample.value
    return found


@pytest.mark.needs(Capability.CONTROL_PLANE)
def test_steps_restarts_and_usage_are_seen_by_whichever_controller_is_asked(
    cluster: Cluster, observation: Observation
) -> None:
    namespace = observation.namespace
    cluster.apply(
        jobs.digits(cluster, namespace, epochs=jobs.ENDLESS_EPOCHS, step_delay_seconds=0.1), namespace
    )
    jobs.wait_until_training(observation, 2)
    cluster.kill_process(namespace, jobs.current_pods(observation)[1])
    jobs.wait_until_training(observation, 2, beyond_step=max(jobs.steps(observation)))

    def series() -> Series | None:
        """The controller may hear of the steps after the restart later than we."""
        seen = scrape(cluster, namespace)
        has_steps = {(STEP_SECONDS, worker) for worker in WORKERS} <= seen.keys()
        trains = has_steps and seen["dlr_job_restarts", ""] and seen["dlr_job_state", "Training"]
        return seen if trains else None

    seen = observation.wait_for("the restart and steps", series)
    assert seen["dlr_job_phase", "Running"] == seen["dlr_job_state", "Training"] == 1
    assert seen["dlr_job_failures", "Killed"] == seen["dlr_job_restarts", ""] == 1
    assert seen["dlr_job_round", ""] == 2
    assert seen["dlr_job_world_workers", ""] == seen["dlr_job_world_size", ""] == 2
    assert 0 < seen["dlr_job_goodput_ratio", ""] <= 1
    for worker in WORKERS:
        assert 0.05 < seen[STEP_SECONDS, worker] < 60

    controller = cluster.control_plane(embedded.CONTROLLER)
    killed = controller.pid()
    controller.signal(signal.SIGKILL)
    observation.wait_for("the next controller", lambda: controller.pid() not in (None, killed))
    again = observation.wait_for("its metrics", series)
    sums = ("dlr_job_state_seconds", "dlr_job_restarts", "dlr_job_steps_redone_total")
    assert all(again[key] >= seen[key] for key in seen if key[0] in sums), "no sum begins anew"
    assert again["dlr_job_failures", "Killed"] == again["dlr_job_restarts", ""] == 1
    assert again["dlr_job_step", ""] >= seen["dlr_job_step", ""]
