"""`dlr manifests`: what `kubectl apply -f -` installs into a cluster."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

import deploy
from dlr.commands.install.images import Images
from dlr.commands.install.options import (
    AgentImage,
    CheckImage,
    ControllerNamespace,
    Image,
    JobsNamespace,
    NetworkPolicy,
    PriorityClass,
    documents_for,
)


class ManifestFormat(StrEnum):
    YAML = "yaml"
    JSON = "json"


def manifests(
    namespace: ControllerNamespace = deploy.DEFAULT_NAMESPACE,
    image: Image = None,
    check_image: CheckImage = None,
    agent_image: AgentImage = None,
    jobs_namespace: JobsNamespace = None,
    network_policy: NetworkPolicy = False,
    priority_class: PriorityClass = False,
    output: Annotated[
        ManifestFormat, typer.Option("--output", "-o", help="What to print.")
    ] = ManifestFormat.YAML,
) -> None:
    """Print what `dlr install` applies: dlr manifests | kubectl apply -f -"""
    import yaml

    from dlr.commands.output import print_json

    documents = documents_for(
        namespace,
        Images(image, check_image, agent_image),
        jobs_namespace=jobs_namespace,
        network_policy=network_policy,
        priority_class=priority_class,
    )
    if output is ManifestFormat.JSON:
        print_json({"apiVersion": "v1", "kind": "List", "items": documents})
    else:
        yaml.safe_dump_all(documents, sys.stdout, sort_keys=False)
