"""`dlr hosts`: the hosts of a job on stdout, nothing else."""

from __future__ import annotations

from typing import Any

from tests.cli.scripted import Dlr, Script, job, show, worker


def host(index: int, state: str = "Ready") -> dict[str, Any]:
    address = f"10.0.0.{index}"
    agent = {"incarnation": 1, "podUid": "u", "address": address, "localWorldSize": 1, "state": state}
    return worker(index, podUid="u", agent=agent)


def test_prints_what_can_be_used_now(server: Script, dlr: Dlr) -> None:
    show(server, job(phase="Running"), [host(1), host(0), host(2, "Failed")])
    done = dlr("hosts", "digits", "--slots", "2")
    assert (done.exit_code, done.out, done.err) == (0, "10.0.0.0:2\n10.0.0.1:2\n", "")


def test_of_a_job_with_replica_groups_names_one(server: Script, dlr: Dlr) -> None:
    grouped = job(phase="Running")
    grouped["spec"]["elasticPolicy"] = {"replicaGroups": {"workers": 2, "min": 1}}
    show(server, grouped)
    done = dlr("hosts", "digits")
    assert (done.exit_code, done.out) == (2, "")
    assert done.err.endswith("name one, such as: dlr hosts digits-group-0 -n default.\n")
