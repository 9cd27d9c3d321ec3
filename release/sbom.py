"""Software bill of materials of an artefact, in CycloneDX's JSON (https://cyclonedx.org/docs/1.6/json/)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata
from typing import Any

JSON = dict[str, Any]


def sbom(name: str, version: str, created: str, distributions: Iterable[metadata.Distribution]) -> JSON:
    """Return the bill of materials of an artefact.

    Args:
        name: name of the artefact.
        version: version of the artefact.
        created: time of the artefact, in ISO 8601.
        distributions: distributions that it contains.
    """
    found = sorted(
        (_component(each) for each in distributions),
        key=lambda each: each["purl"],
    )
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": created,
            "component": {"type": "application", "bom-ref": name, "name": name, "version": version},
        },
        "components": found,
        "dependencies": [{"ref": name, "dependsOn": [each["bom-ref"] for each in found]}],
    }


def _component(distribution: metadata.Distribution) -> JSON:
    name = re.sub(r"[-_.]+", "-", distribution.name).lower()
    purl = f"pkg:pypi/{name}@{distribution.version}"
    component: JSON = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": distribution.version,
        "purl": purl,
    }
    about = distribution.metadata.json
    if expression := about.get("license_expression"):
        component["licenses"] = [{"expression": expression}]
    elif license_name := str(about.get("license", "")).partition("\n")[0].strip():
        component["licenses"] = [{"license": {"name": license_name}}]
    return component
