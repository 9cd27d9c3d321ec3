"""Judgement of a cluster's facts: a line for each, with advice where something is wrong. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from controller.wording import some_of
from dlr.commands.doctor.facts import TOPICS, ClusterFacts
from dlr.commands.doctor.queues import sentences
from dlr.commands.install import others
from dlr.commands.install.installer import EMBEDDED_LEASE_NAMESPACE
from dlr.commands.install.kinds import container_of
from dlr.commands.install.readiness import Reading, controller_reading, crds_reading, leader
from reconcilers.worker.image_volumes import can_mount_images

MINIMUM_MINOR = 30
"""Minor version of Kubernetes 1 in which ValidatingAdmissionPolicy, which confines workers, became v1."""
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
    """Return one line or more per topic, in the order in which one would fix things."""
    objects: Iterator[Callable[[ClusterFacts], Iterator[DoctorLine]]]
    objects = (partial(_objects, topic=topic) for topic in dict.fromkeys(TOPICS.values()))
    return [
        line for judge in (_server, *objects, _dlrover, _controller, _agent, _kueue) for line in judge(facts)
    ]


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


def _objects(facts: ClusterFacts, topic: str) -> Iterator[DoctorLine]:
    """Yield whether the objects of an installation exist, and equal this version's."""
    live = facts.objects.get(topic)
    if live is None:
        yield _not_seen(facts, topic, topic)
        return
    wanted, is_installed = facts.wanted(topic), facts.deployment is not None
    foreign = others.foreign_crds(live.values()) if topic == "crds" else []
    ours = {title: each for title, each in live.items() if each["metadata"]["name"] not in foreign}
    if foreign:
        yield DoctorLine(
            Level.PROBLEM,
            topic,
            f"Another operator has defined {', '.join(foreign)} (DLRover's have these names). A cluster has "
            "one definition of each: read docs/from-dlrover.md, then `dlr install --replace-crds`.",
        )
    if not live and not is_installed:
        yield DoctorLine(Level.OK, topic, "Not there yet; `dlr install` makes them.")
        return
    reading = crds_reading(ours.values()) if topic == "crds" else Reading(True, "")
    different = [title for title, each in ours.items() if not covers(each, wanted[title])]
    if (absent := sorted(wanted.keys() - live.keys())) and (ours or is_installed):
        text = f"{_some(absent)} not there{MEANS.get(topic, '')}. Run {_how_to_upgrade(facts)}."
        yield DoctorLine(Level.PROBLEM, topic, text)
    elif not reading.ready:
        yield DoctorLine(Level.PROBLEM, topic, f"{reading.sentence} See kubectl describe crd.")
    elif different:
        text = f"{_some(different)} of another version than this dlr. To have this one's: "
        yield DoctorLine(Level.WARN, topic, f"{text}{_how_to_upgrade(facts)}.")
    elif not foreign:
        yield DoctorLine(Level.OK, topic, f"All {len(ours)} are there, and of this version.")


MEANS = {
    "admission": ": a worker could report in another's name",
    "rights": ": the controller may not do all that it needs to",
}
"""Consequence of missing objects, by topic."""


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


def _kueue(facts: ClusterFacts) -> Iterator[DoctorLine]:
    if "kueue" in facts.refused:
        yield _not_seen(facts, "kueue", "kueue")
        return
    arguments = container_of(facts.deployment).get("args") or () if facts.deployment else ()
    for is_well, text in sentences(facts.kueue, is_asked="--kueue" in arguments):
        yield DoctorLine(Level.OK if is_well else Level.WARN, "kueue", text)


def _how_to_upgrade(facts: ClusterFacts) -> str:
    """Return the command that applies this version's objects, by the tool that installed dlr."""
    release = None if facts.deployment is None else others.helm_release(facts.deployment)
    return "`dlr install`" if release is None else f"`helm upgrade {release} -n {facts.namespace}`"


def _some(titles: Sequence[str]) -> str:
    return some_of([title.partition("/")[2] for title in titles], _NAMED_AT_MOST)


def _not_seen(facts: ClusterFacts, topic: str, fact: str) -> DoctorLine:
    why = facts.refused.get(fact, "the API server did not say why")
    return DoctorLine(Level.WARN, topic, f"Could not be checked: {why}")


def covers(live: Any, wanted: Any) -> bool:
    """Whether `live` includes `wanted`: it may have more fields, but not more elements of a list."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            key in live and covers(live[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(live, list) and len(live) == len(wanted) and all(map(covers, live, wanted))
    if isinstance(wanted, bool) or isinstance(live, bool):
        return live is wanted
    return bool(live == wanted)
