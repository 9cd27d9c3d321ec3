"""The custom resources: pydantic models, the generator of their CRDs, and the YAML itself.

The agent and the SDK load some of these modules inside training images. Those modules import only the
standard library, and little of it (the contract in pyproject.toml lists them). Agent and controller share
`agent_report`, which an agent writes; `progress_record` and `checkpoint_files`, through which a training
process and its agent communicate; `phases`, `failure_texts` and `names`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def manifests() -> list[dict[str, Any]]:
    """The CustomResourceDefinition objects, as shipped in crds/yaml/."""
    from pathlib import Path

    import yaml

    # The C loader is ten times as fast, but not every build of PyYAML has it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    folder = Path(__file__).parent / "yaml"
    return [yaml.load(path.read_text(), loader) for path in sorted(folder.glob("*.yaml"))]
