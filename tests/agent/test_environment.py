from __future__ import annotations

import pytest

from agent.environment import Environment, InvalidEnvironmentError
from agent.kube import api
from crds import names

GIVEN = {
    names.ENV_JOB_NAME: "digits",
    names.ENV_NAMESPACE: "team",
    names.ENV_WORKER_NAME: "digits-worker-3",
    names.ENV_WORKER_INDEX: "3",
    names.ENV_INCARNATION: "2",
    names.ENV_POD_UID: "u",
    names.ENV_POD_IP: "10.0.0.3",
    names.ENV_NODE_NAME: "node-1",
    names.ENV_HEARTBEAT_SECONDS: "12.5",
    names.ENV_GRACE_SECONDS: "60",
}


def test_read() -> None:
    me = Environment.read(GIVEN)
    assert me == Environment("digits", "team", "digits-worker-3", 3, 2, "u", "10.0.0.3", "node-1", 12.5, 60.0)
    assert me.pod_name == "digits-worker-3-2"
    assert Environment.read({**GIVEN, names.ENV_REPLICA_TYPE: "ps"}).replica_type == "ps"


@pytest.mark.parametrize("name", sorted(GIVEN.keys() - {names.ENV_NODE_NAME}))
def test_what_is_missing_is_named_or_has_a_default(name: str) -> None:
    given = {**GIVEN, name: ""}
    if name in (names.ENV_HEARTBEAT_SECONDS, names.ENV_GRACE_SECONDS):
        assert Environment.read(given)
    else:
        with pytest.raises(InvalidEnvironmentError, match=f"^{name} is not set, so this is not a worker Pod"):
            Environment.read(given)


def test_a_check_takes_the_place_of_the_job() -> None:
    given = {**GIVEN, names.ENV_CHECK_NAME: "nightly"}
    del given[names.ENV_JOB_NAME]
    assert Environment.read(given, owner=names.ENV_CHECK_NAME).owner_name == "nightly"
    with pytest.raises(
        InvalidEnvironmentError, match="DLR_CHECK_NAME is not set, so this is not a Pod of a N"
    ):
        Environment.read(GIVEN, owner=names.ENV_CHECK_NAME)


def test_nonsense_is_named() -> None:
    with pytest.raises(InvalidEnvironmentError, match="DLR_WORKER_INDEX is 'three' but must be a number"):
        Environment.read({**GIVEN, names.ENV_WORKER_INDEX: "three"})


def test_api_server_is_found_from_within_a_pod(tmp_path) -> None:
    with pytest.raises(InvalidEnvironmentError, match="KUBERNETES_SERVICE_HOST is not set"):
        api.ApiClient.in_cluster({})
    with pytest.raises(InvalidEnvironmentError, match="token does not exist"):
        api.ApiClient.in_cluster({"KUBERNETES_SERVICE_HOST": "h", "DLR_SERVICEACCOUNT_DIR": str(tmp_path)})
