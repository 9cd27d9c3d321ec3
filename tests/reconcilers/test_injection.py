"""The agent comes into a Pod's first container, whatever its command looks like."""

import copy
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcilers.observed.options import AgentSource
from reconcilers.worker.injection import ENV_PYTHON, inject_agent, with_agent

SOURCE = AgentSource("registry/agent:1", "/opt/agent", "/dlr")
PATHS = 'export PATH="/dlr/bin:$PATH" PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}/dlr/dlr.pyz"\n'
WRAPPER = ["/bin/sh", "-c", PATHS + 'exec "$0" "$@"']


def injected(*, images_mount: bool = False, **container: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "image": "x", **container}, {"name": "sidecar", "image": "y"}]}
    inject_agent({"metadata": {}, "spec": spec}, SOURCE, images_mount=images_mount)
    return spec


@pytest.mark.parametrize(
    ("words", "becomes", "python"),
    [
        (["torchrun", "t.py"], ["/dlr/bin/torchrun", "t.py"], None),
        (["dlr", "run", "t.py"], ["/dlr/bin/dlr", "run", "t.py"], None),
        (["dlrover-run", "t.py"], ["/dlr/bin/dlrover-run", "t.py"], None),
        (["/opt/conda/bin/torchrun", "t.py"], ["/dlr/bin/torchrun", "t.py"], "/opt/conda/bin/python3"),
        (
            ["python3.12", "-u", "-m", "torch.distributed.run", "t.py"],
            ["/dlr/bin/torchrun", "t.py"],
            "python3.12",
        ),
        (
            ["/bin/bash", "-eo", "pipefail", "-lc", "cd /x\ntorchrun t.py", "zero"],
            ["/bin/bash", "-eo", "pipefail", "-lc", PATHS + "cd /x\ntorchrun t.py", "zero"],
            None,
        ),
        (
            ["python", "-m", "dlrover.trainer.torch.elastic_run", "t.py"],
            ["/dlr/bin/dlrover-run", "t.py"],
            "python",
        ),
        (["bash", "-c", "-l", "--", "x"], ["bash", "-c", "-l", "--", PATHS + "x"], None),
        (["sh", "+x", "-cleo", "pipefail", "x"], ["sh", "+x", "-cleo", "pipefail", PATHS + "x"], None),
        (["python", "-W", "ignore", "-m", "torch.distributed.run"], ["/dlr/bin/torchrun"], "python"),
        *(
            (words, [*WRAPPER, *words], None)
            for words in (
                ["bash", "-c", "torchrun t.py"],
                ["bash", "-c", "--", "torchrun t.py"],
                ["bash", "-l", "train.sh", "-c", "config.yaml"],
                ["dlr", "job"],
                ["python", "-m"],
            )
        ),
    ],
)
def test_a_command_finds_our_launchers_first_and_of_any_other_no_word_is_changed(
    words: list[str], becomes: list[str], python: str | None
) -> None:
    assert with_agent(words, "/dlr") == (becomes, python)


def test_command_and_args_are_one_command() -> None:
    container = injected(command=["bash", "-c"], args=["torchrun t.py"])["containers"][0]
    assert container["command"] == [*WRAPPER, "bash", "-c", "torchrun t.py"]
    assert "args" not in container


@pytest.mark.parametrize(
    ("args", "become"),
    [
        (["torchrun", "t.py"], ["/dlr/bin/torchrun", "t.py"]),
        (["bash", "-c", "torchrun t.py"], [*WRAPPER, "bash", "-c", "torchrun t.py"]),
        (["--lr", "1"], ["--lr", "1"]),
        (["train.yaml"], ["train.yaml"]),
    ],
)
def test_arguments_of_an_images_entrypoint_stay_arguments(args: list[str], become: list[str]) -> None:
    container = injected(args=args)["containers"][0]
    assert container["args"] == become
    assert "command" not in container


def test_the_python_beside_an_absolute_path_is_named_unless_the_user_names_one() -> None:
    of_image = injected(command=["/opt/conda/bin/torchrun", "t.py"])["containers"][0]["env"]
    assert of_image == [{"name": ENV_PYTHON, "value": "/opt/conda/bin/python3"}]
    own = [{"name": ENV_PYTHON, "value": "/mine"}]
    assert injected(command=["/opt/conda/bin/torchrun"], env=own)["containers"][0]["env"] == own


def test_it_is_copied_before_anything_else_starts_and_read_only_in_the_first_container() -> None:
    spec = injected(command=["torchrun", "t.py"], volumeMounts=[{"name": "data", "mountPath": "/data"}])
    first = spec["initContainers"][0]
    assert first["image"] == "registry/agent:1"
    assert first["command"] == ["cp", "-R", "/opt/agent/.", "/dlr"]
    assert spec["containers"][0]["volumeMounts"][-1] == {
        "name": "dlr-agent",
        "mountPath": "/dlr",
        "readOnly": True,
    }
    assert spec["containers"][1] == {"name": "sidecar", "image": "y"}


@pytest.mark.parametrize(
    ("words", "started", "python"),
    [
        (["torchrun", "t.py"], ["torchrun", "t.py"], None),
        (["/conda/bin/python", "-m", "torch.distributed.run", "t"], ["torchrun", "t"], "/conda/bin/python"),
    ],
)
@pytest.mark.parametrize("place", ["command", "args"])
def test_where_nodes_mount_images_a_launcher_is_started_from_the_agents(
    place: str, words: list[str], started: list[str], python: str | None
) -> None:
    """By a shell, since nothing may be executed from such a volume; and no emptyDir holds a drain up."""
    pod = {"metadata": {}, "spec": {"containers": [{"name": "main", "image": "x", place: words}]}}
    inject_agent(pod, SOURCE, images_mount=True)
    (volume,), (container,) = pod["spec"]["volumes"], pod["spec"]["containers"]
    assert volume["image"] == {"reference": "registry/agent:1", "pullPolicy": "IfNotPresent"}
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/dlr", "readOnly": True}]
    assert container[place] == ["/bin/sh", f"/dlr/opt/agent/bin/{started[0]}", *started[1:]]
    assert [each["value"] for each in container.get("env", ())] == [python] * bool(python)
    assert "initContainers" not in pod["spec"]
    assert "cluster-autoscaler" not in str(pod)


@pytest.mark.parametrize(
    "container", [{}, {"command": ["bash", "-c", "torchrun t.py"]}, {"args": ["python", "t.py"]}]
)
def test_what_may_look_for_a_launcher_on_path_gets_a_copy_that_can_be_executed(
    container: dict[str, Any],
) -> None:
    assert injected(images_mount=True, **container) == injected(**container)


def test_it_asks_for_the_cpu_and_memory_that_the_training_container_has() -> None:
    """So the Pod's quality of service, LimitRanges and quotas are met as without it."""
    resources = {"limits": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": 1}, "requests": {"cpu": "1"}}
    first = injected(command=["torchrun"], resources=resources)["initContainers"][0]
    assert first["resources"] == {"limits": {"cpu": "4", "memory": "8Gi"}, "requests": {"cpu": "1"}}
    assert injected(command=["torchrun"])["initContainers"][0]["resources"] == {}


def test_it_runs_as_the_training_container_does_with_no_further_rights() -> None:
    context = {
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "privileged": True,
        "capabilities": {"add": ["IPC_LOCK"]},
    }
    made = injected(command=["torchrun"], securityContext=context)["initContainers"][0]["securityContext"]
    assert made["runAsUser"] == 1000
    assert made["runAsNonRoot"] is True
    assert made["capabilities"] == {"drop": ["ALL"]}
    assert "privileged" not in made


@pytest.mark.parametrize(("own", "told"), [(None, "dlr-agent"), ("scratch", "scratch,dlr-agent")])
def test_the_autoscaler_may_drain_a_node_in_spite_of_the_volume(own: str | None, told: str) -> None:
    name = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
    pod = {
        "metadata": {"annotations": {name: own} if own else {}},
        "spec": {"containers": [{"name": "main"}]},
    }
    inject_agent(pod, SOURCE)
    assert pod["metadata"]["annotations"] == {name: told}


WORDS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4)


@pytest.mark.real
def test_what_is_not_launched_by_us_runs_with_the_very_words_it_had() -> None:
    words = ["printf", "<%s>", "", "a b", "$HOME", "'\"\\\n*", "-n", "é"]
    command, _ = with_agent(words, "/dlr")
    wrapped = subprocess.run(command, capture_output=True, check=True, timeout=300).stdout
    assert wrapped.decode() == "".join(f"<{word}>" for word in words[2:])


@given(WORDS.filter(bool))
def test_a_template_is_never_changed_but_for_what_is_added(words: list[str]) -> None:
    spec = {
        "containers": [{"name": "main", "image": "x", "command": words, "tty": True}],
        "hostNetwork": True,
    }
    before = copy.deepcopy(spec)
    inject_agent({"metadata": {}, "spec": spec}, SOURCE)
    added = {"volumes", "initContainers"}
    assert {k: v for k, v in spec.items() if k not in added | {"containers"}} == {"hostNetwork": True}
    container = {
        k: v for k, v in spec["containers"][0].items() if k not in ("command", "volumeMounts", "env")
    }
    assert container == {k: v for k, v in before["containers"][0].items() if k != "command"}
    assert spec["containers"][0]["command"][-len(words) + 1 :] == words[1:] or len(words) == 1
