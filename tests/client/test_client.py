"""`dlr.Client` and `dlr.Job`, and `dlr job launch`, against a scripted API server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import dlr
from dlr.client import ApiError, JobFailed
from dlr.client.image import UNUSED_IMAGE
from dlr.result import MAX_RESULT, encoded
from tests.cli.scripted import (
    GROUP_PATH,
    JOBS,
    JSON,
    Answer,
    Dlr,
    Request,
    Script,
    job,
    listing,
    refusal,
    worker,
)
from tests.cli.test_job_groups import group, grouped, of_group, step
from tests.client import functions

WORKERS = f"GET {GROUP_PATH}/default/elasticworkers"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
NAME = "alone"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def made(server: Script) -> Iterator[Script]:
    """A server that takes the job, and has it then."""

    def create(request: Request) -> JSON:
        return {**request.body, **{"metadata": {**job(NAME)["metadata"]}}}

    server.answers[f"POST {JOBS}"] = create
    server.answers[f"POST {CONFIG_MAPS}"] = server.answers[f"PATCH {CONFIG_MAPS}/{NAME}-code"] = {}
    server.answers[f"GET {JOBS}/{NAME}"] = job(NAME, phase="Running")
    server.answers[WORKERS] = listing(worker(0), worker(1))
    yield server


def asked(server: Script) -> list[tuple[str, str]]:
    return [(request.method, request.path) for request in server.requests]


def test_training_makes_code_job_and_owner_in_this_order(made: Script) -> None:
    found = dlr.Client().train(functions.alone, {"lr": 1}, workers=2, image="i", name=NAME)
    assert asked(made) == [("POST", CONFIG_MAPS), ("POST", JOBS), ("PATCH", f"{CONFIG_MAPS}/{NAME}-code")]
    owner = made.requests[-1].body["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("ElasticJob", NAME, f"uid-{NAME}")
    assert repr(found) == "<dlr.Job default/alone: Unobserved, 0/2 workers>"


def test_job_is_suspended_and_resumed_once(made: Script) -> None:
    made.answers[f"PATCH {JOBS}/{NAME}"] = {}
    found = dlr.Client().job(NAME)
    found.resume()
    found.suspend()
    suspended = job(NAME, phase="Suspended")
    suspended["spec"]["suspend"] = True
    made.answers[f"GET {JOBS}/{NAME}"] = suspended
    found.suspend()
    found.resume()
    writes = [each.body for each in made.requests if each.method == "PATCH"]
    assert writes == [{"spec": {"suspend": True}}, {"spec": {"suspend": False}}]


def test_what_dlr_raises_has_one_base() -> None:
    from dlr.checkpoint import DamagedCheckpointError, MismatchError, StorageError
    from dlr.kube.errors import UsageError
    from dlr.shards import ShardsError

    ours = (ApiError, JobFailed, UsageError, DamagedCheckpointError, MismatchError, StorageError, ShardsError)
    assert all(issubclass(each, dlr.Error) for each in ours)


@pytest.mark.parametrize(("version", "needs"), [("v1.36.0+dlr", False), ("v1.36.0", True)])
def test_the_embedded_cluster_needs_no_image(made: Script, version: str, needs: bool) -> None:
    made.answers["GET /version"] = {"gitVersion": version}
    if needs:
        with pytest.raises(ValueError, match="Name the image"):
            dlr.Client().train(functions.alone, {"lr": 1}, name=NAME)
        return
    dlr.Client().train(functions.alone, {"lr": 1}, name=NAME)
    (sent,) = (each.body for each in made.requests if (each.method, each.path) == ("POST", JOBS))
    (container,) = sent["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"]
    assert container["image"] == UNUSED_IMAGE


def test_nothing_is_left_behind_of_a_job_that_is_refused_or_whose_answer_is_lost_and_that_is_not_there(
    made: Script,
) -> None:
    made.answers[f"DELETE {CONFIG_MAPS}/{NAME}-code"] = {}
    refused = refusal(403, "Forbidden", "a policy forbids it")
    lost = refusal(504, "Timeout", "request did not complete")
    for answer, there, says in (
        (refused, job(NAME), "The job 'alone' is refused: a policy forbids it"),
        (lost, refusal(404, "NotFound", "not found"), None),
        (lost, job(NAME), None),
    ):
        made.answers |= {f"POST {JOBS}": answer, f"GET {JOBS}/{NAME}": there}
        with pytest.raises(ApiError, match=says):
            dlr.Client().train(functions.alone, {"lr": 1}, image="i", name=NAME)
        assert asked(made)[-1] == ("DELETE", f"{CONFIG_MAPS}/{NAME}-code")


def test_a_job_whose_answer_is_lost_keeps_its_code(made: Script) -> None:
    def create(request: Request) -> Answer:
        made.answers[f"GET {JOBS}/{NAME}"] = {**request.body, "metadata": job(NAME)["metadata"]}
        return refusal(504, "Timeout", "request did not complete within the allotted timeout")

    made.answers[f"POST {JOBS}"] = create
    found = dlr.Client().train(functions.alone, {"lr": 1}, image="i", name=NAME)
    assert asked(made)[-1] == ("PATCH", f"{CONFIG_MAPS}/{NAME}-code") and found.name == NAME


def test_a_name_that_a_job_has_is_refused_with_the_job_and_its_code_is_left_alone(made: Script) -> None:
    code = refusal(409, "AlreadyExists", f'configmaps "{NAME}-code" already exists')
    made.answers[f"POST {CONFIG_MAPS}"] = code
    with pytest.raises(
        ApiError, match=r"There is an ElasticJob 'alone' .* \(dlr job delete alone -n default\)"
    ):
        dlr.Client().train(functions.alone, {"lr": 1}, image="i", name=NAME)
    made.answers[f"GET {JOBS}/{NAME}"] = refusal(404, "NotFound", "not found")
    with pytest.raises(
        ApiError, match=r'^configmaps "alone-code" already exists in .*: delete it, or choose'
    ):
        dlr.Client().train(functions.alone, {"lr": 1}, image="i", name=NAME)
    assert ("DELETE", f"{CONFIG_MAPS}/{NAME}-code") not in asked(made)


def test_nothing_is_made_of_what_cannot_be_shipped(made: Script) -> None:
    with pytest.raises(ValueError, match="lambda"):
        dlr.Client().train(lambda: 1, image="i")
    for name in ("1st", "", "a" * 46):
        with pytest.raises(ValueError, match="is no name for a job: it needs at most 45 of"):
            dlr.Client().train(functions.alone, {"lr": 1}, image="i", name=name)
    assert made.requests == []


def finished(phase: str, **status: Any) -> JSON:
    return job(NAME, phase=phase, rendezvous={"round": 2, "members": "1-2"}, **status)


def test_result_is_what_rank_0_of_the_last_world_has_left(made: Script) -> None:
    made.answers[f"GET {JOBS}/{NAME}"] = [job(NAME, phase="Running")] * 3 + [finished("Succeeded")]
    of_rank_0 = worker(1, agent={"result": encoded({"accuracy": 0.9})})
    made.answers[WORKERS] = listing(
        worker(0, agent={"result": encoded("of a worker that is out")}), of_rank_0
    )
    assert dlr.Client().job(NAME).result() == {"accuracy": 0.9}


class Failing(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("an own error")


def test_result_that_could_not_be_kept_says_why(made: Script) -> None:
    made.answers[f"GET {JOBS}/{NAME}"] = finished("Succeeded")
    results = {
        "8192 are kept: save it": "x" * MAX_RESULT,
        "is not JSON": object(),
        "an own error": Failing(a=1),
    }
    for says, value in results.items():
        made.answers[WORKERS] = listing(worker(1, agent={"result": encoded(value)}))
        with pytest.raises(ValueError, match=says):
            dlr.Client().job(NAME).result()
    made.answers[WORKERS] = listing(worker(1))
    assert dlr.Client().job(NAME).result() is None


def test_waiting_ends_with_an_error_when_the_job_fails_or_takes_too_long(made: Script) -> None:
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.05 s: Running"):
        dlr.Client().job(NAME).wait(0.05)
    failure = {"message": "rank 1: ValueError: no"}
    made.answers[f"GET {JOBS}/{NAME}"] = finished("Failed", lastFailure=failure)
    with pytest.raises(JobFailed, match="The job 'alone' failed: rank 1: ValueError: no"):
        dlr.Client().job(NAME).wait()
    running = job(NAME, phase="Running")
    made.answers[f"GET {JOBS}/{NAME}"] = [running, running, finished("Failed", lastFailure=failure)]
    with pytest.raises(JobFailed):  # after the time was up
        dlr.Client().job(NAME).wait(0)


def test_launch_prints_what_it_would_apply_without_a_cluster(
    dlr: Dlr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    script = tmp_path / "train.py"
    script.write_text('if True:\n    print("ä: - #")\n')
    words = ("job", "launch", str(script), "--workers", "4", "--min", "2", "--image", "i", "--dry-run")
    printed = dlr(*words, "--env", "A=b=c", "--", "--lr", "0.1")
    assert printed.exit_code == 0, printed.err
    code, made = yaml.safe_load_all(printed.out)
    assert code["data"]["code"] == script.read_text()
    container = made["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"][0]
    assert container["command"][-2:] == ["--lr", "0.1"]
    assert container["env"] == [{"name": "A", "value": "b=c"}]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("absent.py",), "cannot be read: No such file"),
        (("train.py", "--env", "A"), "--env 'A' is not NAME=VALUE"),
        (("train.py", "--name", "a.b"), "'a.b' is no name for a job"),
        (("",), "it is empty"),
    ],
)
def test_launch_refuses_in_one_sentence(
    dlr: Dlr, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    done = dlr("job", "launch", "--image", "i", *words)
    assert (done.exit_code, done.out) == (2, "")
    assert says in done.err
    assert len(done.err.splitlines()) == 1


def test_options_of_the_script_are_sent_behind_two_dashes(dlr: Dlr) -> None:
    done = dlr("job", "launch", "train.py", "--image", "i", "--lr", "0.1")
    assert done.exit_code == 2
    assert done.err.startswith("dlr: No such option: --lr")
    assert "Options of the script stand behind `--`. See `dlr job launch --help`." in done.err
    assert "Options of the script" not in dlr("job", "launch").err
    assert "Options of the script" not in dlr("job", "list", "--lr").err


@pytest.mark.real
def test_a_training_script_that_imports_dlr_imports_nothing_of_the_client_and_nothing_heavy() -> None:
    program = "import sys, dlr; dlr.report(1); dlr.report_result(2); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"torch", "kubernetes", "typer", "pydantic", "yaml", "rich", "aiohttp", "json"}
    assert not loaded & {"urllib3", "asyncio"}
    assert "dlr.client" not in done.stdout.split()
    shared = {name for name in done.stdout.split() if name.startswith("crds.")}
    assert shared <= {"crds.progress_record", "crds.checkpoint_files"}


def with_groups(server: Script, **status: Any) -> dlr.Job:
    """A job of three replica groups of two workers."""
    workers = [of_group(number, index, agent=step(100 + number)) for number in range(3) for index in range(2)]
    server.answers |= {
        f"GET {JOBS}/digits": grouped(**status),
        f"GET {JOBS}": listing(
            group(1), job(NAME), grouped(), group(0, phase="Failed"), group(2, phase="Succeeded")
        ),
        WORKERS: listing(*workers),
    }
    return dlr.Client().job("digits")


def test_the_status_of_a_job_with_replica_groups_counts_those_that_train(server: Script) -> None:
    status = with_groups(server).status()
    assert (status.groups, status.desired_groups, status.step, status.round) == (2, 3, 102, 0)
    assert str(status) == "Running, 5/6 workers, 2/3 groups, step 102"


def test_replica_groups_are_jobs_of_their_own_and_none_of_the_clients(server: Script) -> None:
    found = with_groups(server)
    assert [each.name for each in dlr.Client().jobs()] == [NAME, "digits"]
    assert [each.name for each in found.groups()] == [f"digits-group-{index}" for index in range(3)]
    assert found.group(1).name == "digits-group-1"
    server.answers[f"GET {JOBS}/digits-group-1"] = group(1)
    with pytest.raises(ValueError, match="has no replica group 3; its groups are 0-2"):
        found.group(3)
    with pytest.raises(
        ValueError, match=r"name one, such as: dlr job logs digits-group-0 -n default --rank 0\."
    ):
        list(found.logs(0))
    with pytest.raises(ValueError, match=r"use the whole job: dlr job scale digits -n default\."):
        found.group(1).scale(4)


def test_the_result_is_that_of_the_first_group_that_has_succeeded(server: Script) -> None:
    found = with_groups(server, phase="Succeeded")
    world = {"round": 1, "phase": "Formed", "members": "0-1", "worldSize": 2}
    last = group(2, phase="Succeeded", rendezvous=world)
    server.answers[f"GET {JOBS}"] = listing(group(0, phase="Failed"), last)

    def workers(request: Request) -> JSON:
        is_last = request.query["labelSelector"].endswith("=digits-group-2")
        result = json.dumps({"value": "of group 2" if is_last else "of another"})
        return listing(of_group(2, 0, agent={"incarnation": 1, "result": result}), of_group(2, 1))

    server.answers[WORKERS] = workers
    assert found.result() == "of group 2"
