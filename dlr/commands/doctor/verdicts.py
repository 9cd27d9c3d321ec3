"""What the facts of a cluster mean for dlr: a line each, with what to do where something is wrong. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from controller.wording import some_of
from dlr.commands.doctor.facts import ClusterFacts
from dlr.commands.doctor.queues import sentences
from dlr.commands.doctor.rights import Right
from dlr.commands.install import others
from dlr.commands.install.installer import EMBEDDED_LEASE_NAMESPACE
from dlr.commands.install.readiness import controller_reading, crds_reading, leader
from dlr.kube.api import JSON
from reconcilers.runtime.kinds import DEVICETAINTRULES, RESOURCESLICES
from reconcilers.worker.image_volumes import can_mount_images

MINIMUM_MINOR = 30
"""Of Kubernetes 1: since then ValidatingAdmissionPolicy is v1, which holds workers to their own objects."""
_NAMED_AT_MOST = 4


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    PROBLEM = "problem"


@dataclass(frozen=True)
class DoctorLine:
    level: Level
    topic: str
    text: str


def verdicts(facts: ClusterFacts) -> list[DoctorLine]:
    """One line or more a topic, in the order in which one would mend things."""
    judges = (
        *(_server, _rights, _admission, _crds, _dlrover),
        *(_controller, _controllers_rights, _agent, _devices, _kueue),
    )
    return [line for judge in judges for line in judge(facts)]


def _server(facts: ClusterFacts) -> Iterator[DoctorLine]:
    shown = facts.version.get("gitVersion", "of an unknown version")
    minor = re.match(r"\d+", str(facts.version.get("minor", "")))
    text = f"Kubernetes {shown} at {facts.server}"
    if str(facts.version.get("major")) == "1" and minor and int(minor.group()) < MINIMUM_MINOR:
        yield DoctorLine(
            Level.PROBLEM,
            "server",
            f"{text}: dlr needs 1.{MINIMUM_MINOR} or newer, for ValidatingAdmissionPolicy v1. Upgrade it, or "
            "install without deploy/admission by kustomize (docs/install.md), where workers of one namespace "
            "have to trust each other.",
        )
    else:
        yield DoctorLine(Level.OK, "server", text)


def _rights(facts: ClusterFacts) -> Iterator[DoctorLine]:
    missing = facts.missing_to_install
    if missing is None:
        yield _not_seen(facts, "rights", "missing_to_install")
    elif missing:
        level = Level.PROBLEM if facts.deployment is None else Level.WARN
        yield DoctorLine(
            level,
            "rights",
            f"You may not {_some(missing)}: `dlr install` needs somebody who may, such as a cluster-admin.",
        )
    else:
        yield DoctorLine(Level.OK, "rights", "You may install and upgrade dlr.")


def _admission(facts: ClusterFacts) -> Iterator[DoctorLine]:
    if "policies" in facts.refused:
        yield _not_seen(facts, "admission", "policies")
        return
    if facts.policies is None:
        yield DoctorLine(
            Level.PROBLEM,
            "admission",
            "The API server serves no ValidatingAdmissionPolicy v1, which holds a worker to its own objects. "
            f"It is there from Kubernetes 1.{MINIMUM_MINOR} on, unless switched off (--runtime-config).",
        )
        return
    kind = "ValidatingAdmissionPolicy"
    wanted = [each["metadata"]["name"] for each in facts.documents if each["kind"] == kind]
    absent = [name for name in wanted if name not in facts.policies]
    if absent and facts.deployment is not None:
        yield DoctorLine(
            Level.WARN,
            "admission",
            f"{', '.join(absent)} not there: a worker could report in another's name. "
            f"Run {_how_to_upgrade(facts)}.",
        )
    else:
        state = "there" if not absent else "served; `dlr install` makes dlr's"
        yield DoctorLine(Level.OK, "admission", f"ValidatingAdmissionPolicies are {state}.")


def _crds(facts: ClusterFacts) -> Iterator[DoctorLine]:
    if facts.crds is None:
        yield _not_seen(facts, "crds", "crds")
        return
    wanted = {
        document["metadata"]["name"]: document
        for document in facts.documents
        if document["kind"] == "CustomResourceDefinition"
    }
    live = {crd["metadata"]["name"]: crd for crd in facts.crds}
    foreign = others.foreign_crds(facts.crds)
    ours = sorted(live.keys() - set(foreign))
    if foreign:
        yield DoctorLine(
            Level.PROBLEM,
            "crds",
            f"Another operator has defined {', '.join(foreign)} (DLRover's have these names). A cluster has "
            "one definition of each: read docs/from-dlrover.md, then `dlr install --replace-crds`.",
        )
    absent = sorted(wanted.keys() - live.keys())
    if not live:
        level = Level.OK if facts.deployment is None else Level.PROBLEM
        yield DoctorLine(level, "crds", "Not there yet; `dlr install` makes them.")
        return
    if ours and absent:
        yield DoctorLine(
            Level.PROBLEM, "crds", f"{', '.join(absent)} not there. Run {_how_to_upgrade(facts)}."
        )
    reading = crds_reading(live[name] for name in ours)
    if not reading.ready:
        yield DoctorLine(Level.PROBLEM, "crds", f"{reading.sentence} See kubectl describe crd.")
    different = [name for name in ours if not covers(live[name]["spec"], wanted[name]["spec"])]
    if different:
        yield DoctorLine(
            Level.WARN,
            "crds",
            f"{', '.join(different)} of another version than this dlr. "
            f"To have this one's: {_how_to_upgrade(facts)}.",
        )
    elif not absent and not foreign and reading.ready:
        yield DoctorLine(Level.OK, "crds", f"All {len(ours)} are established, and of this version.")


def _dlrover(facts: ClusterFacts) -> Iterator[DoctorLine]:
    if facts.operators is None:
        yield _not_seen(facts, "dlrover", "operators")
        return
    for operator in facts.operators:
        yield DoctorLine(Level.PROBLEM, "dlrover", others.how_to_stop(operator))
    if not facts.operators:
        yield DoctorLine(Level.OK, "dlrover", "No operator of DLRover's runs here.")


def _controller(facts: ClusterFacts) -> Iterator[DoctorLine]:
    if facts.controllers is None:
        yield _not_seen(facts, "controller", "controllers")
        return
    holder = leader(facts.lease, facts.now)
    place = ((facts.lease or {}).get("metadata") or {}).get("namespace")
    if facts.embedded and holder and place == EMBEDDED_LEASE_NAMESPACE:
        yield DoctorLine(Level.OK, "controller", f"The controller of `dlr up` leads ({holder}).")
        return
    if facts.embedded and place == EMBEDDED_LEASE_NAMESPACE and facts.deployment is None:
        text = "The controller of `dlr up` does not lead: see logs/controller.log in the cluster's folder"
        yield DoctorLine(Level.PROBLEM, "controller", f"{text}; `dlr down` and `dlr up` start it again.")
        return
    if facts.deployment is None:
        elsewhere = [f"{c['metadata']['namespace']}" for c in facts.controllers]
        hint = f" There is one in {', '.join(elsewhere)}: name it with --namespace." if elsewhere else ""
        yield DoctorLine(
            Level.WARN if elsewhere else Level.OK,
            "controller",
            f"Not in namespace {facts.namespace}; `dlr install` puts it there.{hint}",
        )
        return
    reading = controller_reading(facts.deployment, facts.pods or (), facts.lease, facts.now)
    level = Level.OK if reading.ready else Level.PROBLEM
    advice = "" if reading.ready else f" Look at: kubectl describe pods -n {facts.namespace}"
    yield DoctorLine(level, "controller", f"{reading.sentence}{advice}")
    yield from _skew(facts)


def _skew(facts: ClusterFacts) -> Iterator[DoctorLine]:
    """The image that runs is asked by its tag: another may be right, so this is no problem."""
    running = {_tag(image) for image in _images([facts.deployment or {}])}
    wanted = {_tag(image) for image in _images(facts.documents)}
    if running and None not in running and running != wanted:
        yield DoctorLine(
            Level.WARN,
            "controller",
            f"Its image is of version {', '.join(sorted(map(str, running)))}, this dlr is "
            f"{', '.join(sorted(map(str, wanted)))}: docs/install.md tells which go together.",
        )


def _controllers_rights(facts: ClusterFacts) -> Iterator[DoctorLine]:
    if facts.deployment is None:
        return
    missing = facts.missing_of_controller
    if missing is None:
        yield _not_seen(facts, "controller's rights", "missing_of_controller")
    elif missing:
        yield DoctorLine(
            Level.PROBLEM,
            "controller's rights",
            f"It may not {_some(missing)}. Run {_how_to_upgrade(facts)} again.",
        )
    else:
        yield DoctorLine(Level.OK, "controller's rights", "It may do all that it needs to.")


def _agent(facts: ClusterFacts) -> Iterator[DoctorLine]:
    if facts.nodes is None:
        yield _not_seen(facts, "agent", "nodes")
        return
    unable = [node["metadata"]["name"] for node in facts.nodes if not can_mount_images(node)]
    if facts.nodes and not unable:
        text = "Pods whose command is dlr's or torchrun mount its image: all nodes have image volumes."
    elif facts.nodes:
        text = (
            f"An init container copies it into each Pod, so `kubectl drain` needs --delete-emptydir-data: "
            f"image volumes take Kubernetes 1.36 with containerd 2.1 or CRI-O 1.33, unlike on "
            f"{some_of(unable, _NAMED_AT_MOST)}."
        )
    else:
        text = "There are no nodes yet."
    yield DoctorLine(Level.OK, "agent", text)


def _devices(facts: ClusterFacts) -> Iterator[DoctorLine]:
    if facts.devices is None:
        yield _not_seen(facts, "devices", "devices")
    elif RESOURCESLICES.plural in facts.devices:
        text = "Taints that drivers put on DRA devices are read"
        if DEVICETAINTRULES.plural in facts.devices:
            text = f"{text}, and DeviceTaintRules."
        else:
            text = f"{text}; before Kubernetes 1.36 they need the feature gate DRADeviceTaints."
        yield DoctorLine(Level.OK, "devices", text)


def _kueue(facts: ClusterFacts) -> Iterator[DoctorLine]:
    if "kueue" in facts.refused:
        yield _not_seen(facts, "kueue", "kueue")
        return
    arguments = [
        each for container in _containers([facts.deployment or {}]) for each in container.get("args", ())
    ]
    for is_well, text in sentences(facts.kueue, is_asked="--kueue" in arguments):
        yield DoctorLine(Level.OK if is_well else Level.WARN, "kueue", text)


def _how_to_upgrade(facts: ClusterFacts) -> str:
    """Return the command that applies this version's objects, by what has installed those of the cluster."""
    release = None if facts.deployment is None else others.helm_release(facts.deployment)
    return "`dlr install`" if release is None else f"`helm upgrade {release} -n {facts.namespace}`"


def _images(documents: Sequence[JSON]) -> Iterator[str]:
    return (container["image"] for container in _containers(documents))


def _containers(documents: Sequence[JSON]) -> Iterator[JSON]:
    """Yield the containers of all Deployments."""
    for document in documents:
        if document.get("kind", "Deployment") == "Deployment" and document:
            yield from document["spec"]["template"]["spec"]["containers"]


def _tag(image: str) -> str | None:
    """Return the tag in `host:5000/name:tag@digest`."""
    _, _, tag = image.partition("@")[0].rpartition("/")[2].partition(":")
    return tag or None


def _some(rights: Sequence[Right]) -> str:
    return some_of([str(each) for each in rights], _NAMED_AT_MOST)


def _not_seen(facts: ClusterFacts, topic: str, fact: str) -> DoctorLine:
    why = facts.refused.get(fact, "the API server did not say why")
    return DoctorLine(Level.WARN, topic, f"Could not be checked: {why}")


def covers(live: Any, wanted: Any) -> bool:
    """Whether `live` says all that `wanted` does: fields may be more, elements of a list may not."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            key in live and covers(live[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(live, list) and len(live) == len(wanted) and all(map(covers, live, wanted))
    if isinstance(wanted, bool) or isinstance(live, bool):
        return live is wanted
    return bool(live == wanted)
