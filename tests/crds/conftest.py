from __future__ import annotations

import pytest

import crds
from localcluster.builtin import components
from localcluster.schema import CompiledSchema


@pytest.fixture(scope="session")
def schema() -> CompiledSchema:
    """An ElasticJob's, with its rules."""
    (found,) = (each for each in crds.manifests() if each["spec"]["names"]["kind"] == "ElasticJob")
    return CompiledSchema(
        found["spec"]["versions"][0]["schema"]["openAPIV3Schema"], components(), custom=True
    )
