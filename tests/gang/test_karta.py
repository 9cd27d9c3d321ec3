"""The Karta of examples/kai names what ElasticJobs and their Pods have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import crds
from crds import names
from reconcilers.conditions.table import CONDITIONS
from reconcilers.worker.job_pod import build_job_pod
from tests.reconcilers.build import job, worker

JSON = dict[str, Any]
KARTA = yaml.safe_load((Path(__file__).parents[2] / "examples" / "kai" / "karta.yaml").read_text())
STRUCTURE = KARTA["spec"]["structureDefinition"]
(WORKER,) = STRUCTURE["childComponents"]
(CRD,) = (each for each in crds.manifests() if each["spec"]["names"]["kind"] == "ElasticJob")


def test_its_root_is_an_elasticjob() -> None:
    kind = {"group": names.GROUP, "version": names.VERSION, "kind": "ElasticJob"}
    assert STRUCTURE["rootComponent"]["kind"] == kind
    (group,) = KARTA["spec"]["optimizationInstructions"]["gangScheduling"]["podGroup"]["subGroups"]
    assert group["componentName"] == WORKER["name"]
    assert WORKER["ownerRef"] == STRUCTURE["rootComponent"]["name"]


@pytest.mark.parametrize(
    "path",
    [
        STRUCTURE["rootComponent"]["statusDefinition"]["conditionsDefinition"]["path"],
        STRUCTURE["rootComponent"]["suspendDefinition"]["suspendActions"][0]["path"],
        WORKER["specDefinition"]["podTemplateSpecPath"],
        *WORKER["scaleDefinition"].values(),
    ],
)
def test_its_paths_are_fields_of_an_elasticjob(path: str) -> None:
    schema: JSON = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for field in path.partition(" // ")[0].removeprefix(".").split("."):
        schema = schema["properties"][field]


def test_its_statuses_are_conditions_of_an_elasticjob() -> None:
    mappings = STRUCTURE["rootComponent"]["statusDefinition"]["statusMappings"].values()
    named = {condition["type"] for rules in mappings for rule in rules for condition in rule["byConditions"]}
    assert named and named <= {kind.type for kind in CONDITIONS}


def test_it_selects_the_pods_of_workers() -> None:
    selector = WORKER["podSelector"]["componentTypeSelector"]
    label = re.fullmatch(r'\.metadata\.labels\["(.+)"\]', selector["keyPath"])
    assert label is not None
    assert build_job_pod(job(), worker())["metadata"]["labels"][label[1]] == selector["value"]
