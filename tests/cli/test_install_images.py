"""Which images an installation has: those named, those that it has already, or those beside the controller's."""

from __future__ import annotations

import pytest

import deploy
from dlr.commands.install.images import Images, images_of, of_no_registry

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
