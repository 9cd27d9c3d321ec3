"""`dlr manifests`: what `kubectl apply -f -` installs into a cluster."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer
import yaml

import deploy
from dlr.commands.output import print_json


class ManifestFormat(StrEnum):
    YAML = "yaml"
    JSON = "json"


def manifests(
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Where the controller is to run.")
    ] = deploy.DEFAULT_NAMESPACE,
    image: Annotated[
        str, typer.Option(help="The controller's image, where you have pushed it.")
    ] = deploy.DEFAULT_IMAGE,
    check_image: Annotated[
        str, typer.Option(help="The image that nodes are checked in, where you have pushed it.")
    ] = deploy.DEFAULT_CHECK_IMAGE,
    output: Annotated[
        ManifestFormat, typer.Option("--output", "-o", help="What to print.")
    ] = ManifestFormat.YAML,
) -> None:
    """Print the CRDs, the controller and its rights: dlr manifests | kubectl apply -f -"""
    documents = deploy.documents(namespace, image, check_image)
    if output is ManifestFormat.JSON:
        print_json({"apiVersion": "v1", "kind": "List", "items": documents})
    else:
        yaml.safe_dump_all(documents, sys.stdout, sort_keys=False)
