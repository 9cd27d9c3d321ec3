"""The custom resources: pydantic models, the generator of their CRDs, and the YAML itself.

This module and `crds.names` import nothing outside the standard library at import time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any


def manifests() -> list[dict[str, Any]]:
    """The CustomResourceDefinition objects, as shipped in crds/yaml/."""
    import yaml

    folder = Path(__file__).parent / "yaml"
    return [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]
