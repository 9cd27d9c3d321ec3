"""What `dlr install` takes for its images, and for another controller of the same jobs."""

from __future__ import annotations

from typing import Any

import pytest

import deploy
from dlr.commands.install.images import Images, images_of, of_no_registry
from dlr.commands.install.others import scope_of, why_not_beside, why_not_taken_away

DEFAULTS = (deploy.DEFAULT_IMAGE, deploy.DEFAULT_CHECK_IMAGE, deploy.DEFAULT_AGENT_IMAGE)


@pytest.mark.parametrize(
    ("named", "complete"),
    [
        (Images(), DEFAULTS),
        (Images("r:5000/t/x:2"), ("r:5000/t/x:2", "r:5000/t/dlr-worker:2", "r:5000/t/dlr-agent:2")),
        (Images("r/x:2", "c:1", "a:1"), ("r/x:2", "c:1", "a:1")),
        (Images("r/x@sha256:0"), ("r/x@sha256:0", "r/dlr-worker:0.1.0", "r/dlr-agent:0.1.0")),
        (Images("r/x:2@sha256:0"), ("r/x:2@sha256:0", "r/dlr-worker:2", "r/dlr-agent:2")),
    ],
)
def test_what_is_not_named_is_beside_the_controller_s(named: Images, complete: tuple[str, ...]) -> None:
    assert named.complete() == complete


def test_images_of_a_deployment() -> None:
    (live,) = (
        each for each in deploy.documents("x", "r/c:1", "r/w:1", "r/a:1") if each["kind"] == "Deployment"
    )
    containers = live["spec"]["template"]["spec"]["containers"]
    containers.insert(0, {"name": "sidecar", "image": "s"})
    assert images_of(live) == Images("r/c:1", "r/w:1", "r/a:1")
    containers[1]["args"].append("--agent-image=r/a:2")  # as docs/install.md has an overlay do it
    assert images_of(live) == Images("r/c:1", "r/w:1", "r/a:2")
    containers[1]["args"] = None
    assert Images(agent="r/a:3").otherwise(images_of(live)) == Images("r/c:1", None, "r/a:3")


def test_images_of_no_registry() -> None:
    assert of_no_registry(("a:1", "r/b:1", "localhost:5000/c")) == ["a:1"]


@pytest.mark.parametrize(
    ("arguments", "scope"),
    [
        (None, None),
        (["--leader-elect", "--lease-namespace=dlr-system"], None),
        (["--namespace=a"], "a"),
        (["--namespace=b", "--namespace=a"], "a"),
    ],
)
def test_the_namespace_that_a_controller_is_given(arguments: list[str] | None, scope: str | None) -> None:
    sidecar = {"name": "proxy", "args": ["-n", "5"]}
    container = {"name": "controller", "command": ["dlr", "controller"], "args": arguments}
    spec = {"containers": [sidecar, container]}
    assert scope_of({"spec": {"template": {"spec": spec}}}) == scope


def controller_of_helm(release: str | None) -> dict[str, Any]:
    """A controller's Deployment in dlr-system, as Helm or `dlr install` leaves it."""
    annotations = {"meta.helm.sh/release-name": release} if release else {}
    metadata = {"name": "dlr-controller", "namespace": "dlr-system", "annotations": annotations}
    container = {"name": "controller", "args": ["--leader-elect"]}
    return {"metadata": metadata, "spec": {"template": {"spec": {"containers": [container]}}}}


def test_what_helm_keeps_is_neither_changed_nor_taken_away() -> None:
    ours, helms = [controller_of_helm(None)], [controller_of_helm("training")]
    assert why_not_beside(ours, "dlr-system", None) is why_not_taken_away(ours, "dlr-system", None) is None
    assert why_not_beside(helms, "dlr-system", None) == (
        "Helm keeps the controller in dlr-system: upgrade it with `helm upgrade training -n dlr-system`, or "
        "take it away first with `helm uninstall training -n dlr-system`."
    )
    assert why_not_taken_away(helms, "dlr-system", None) == (
        "Helm keeps the controller in dlr-system: take it away with `helm uninstall training -n dlr-system`."
    )
    beside = why_not_beside(helms, "elsewhere", "team-a")
    assert beside is not None and beside.endswith("`helm uninstall training -n dlr-system`.")
