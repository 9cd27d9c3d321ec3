"""The custom resources: pydantic models, the generator of their CRDs, and the YAML itself.

The agent and the SDK load some of these modules inside training images: they import nothing outside the
standard library at import time, and little of that (the contract in pyproject.toml lists them).
What agent and controller share: `agent_report`, what an agent writes; `progress_record` and
`checkpoint_files`, what a training process and its agent write for each other; `phases`, `failure_texts`,
`names`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def manifests() -> list[dict[str, Any]]:
    """The CustomResourceDefinition objects, as shipped in crds/yaml/."""
    from pathlib import Path

    import yaml

    # The loader in C takes a tenth of the time; not every build of PyYAML has it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    folder = Path(__file__).parent / "yaml"
    return [yaml.load(path.read_text(), loader) for path in sorted(folder.glob("*.yaml"))]
