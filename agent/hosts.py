"""`dlr hosts`: the job's workers for Horovod's host discovery, a line `address:slots` each.

Horovod runs the script every second, takes hosts that are missing from its output for lost, and keeps the
order of the others, lowest ranks first
(https://horovod.readthedocs.io/en/stable/elastic_include.html#running-with-horovodrun).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent.environment import Environment, InvalidEnvironmentError
from agent.kube.api import GROUP_PATH, ApiClient
from controller.errors import ApiError
from crds import names
from crds.agent_report import AgentState

USABLE = (AgentState.READY, AgentState.RUNNING)


def hosts_of(workers: Iterable[Mapping[str, Any]], slots: int | None = None) -> list[str]:
    """Return the workers on which processes can be started now, in rank order.

    The agent of such a worker runs in its current Pod, and is ready or running. A replacement Pod has another
    address, so that Horovod's blacklist does not apply to it.

    Args:
        workers: ElasticWorkers of one job, as objects.
        slots: number of processes on each; None for that of each agent.
    """
    usable = [worker for worker in workers if _is_usable(worker)]
    usable.sort(key=lambda worker: int(worker["spec"]["index"]))
    agents = [worker["status"]["agent"] for worker in usable]
    return [names.with_port(agent["address"], slots or agent["localWorldSize"]) for agent in agents]


def _is_usable(worker: Mapping[str, Any]) -> bool:
    spec, status = worker["spec"], worker.get("status") or {}
    agent = status.get("agent") or {}
    return (
        spec.get("type") == names.WORKER
        and not worker["metadata"].get("deletionTimestamp")
        and status.get("phase") == "Running"
        and not status.get("standby")
        and (agent.get("incarnation"), agent.get("podUid")) == (spec.get("incarnation"), status.get("podUid"))
        and agent.get("state") in USABLE
    )


def main(argv: Sequence[str]) -> int:
    """Print the hosts of this Pod's job.

    Args:
        argv: `--slots N`.

    Returns:
        0, also without hosts; 1 if the API server did not answer; 2 outside of a worker's Pod.
    """
    parser = argparse.ArgumentParser(prog="dlr hosts", description="Print the job's workers, for Horovod.")
    parser.add_argument("--slots", type=_positive, help="processes on each host (default: its own number)")
    chosen = parser.parse_args(argv)
    try:
        me = Environment.read(os.environ)
        api = ApiClient.in_cluster(os.environ)
        path = f"{GROUP_PATH}/namespaces/{me.namespace}/elasticworkers"
        workers = api.get(path, {"labelSelector": f"{names.LABEL_JOB}={me.owner_name}"})["items"]
    except InvalidEnvironmentError as error:
        print(f"dlr hosts: {error}", file=sys.stderr)
        return 2
    except ApiError as error:
        print(f"dlr hosts: the workers of this job cannot be read: {error}", file=sys.stderr)
        return 1
    for host in hosts_of(workers, chosen.slots):
        print(host)
    return 0


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes: name one that is above 0")
    return int(text)
