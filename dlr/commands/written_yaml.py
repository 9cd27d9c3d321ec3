"""Objects as YAML for people to read, edit and apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

JSON = dict[str, Any]


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are, so that a script can be read."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def as_yaml(made: Sequence[JSON]) -> str:
    """A document each."""
    return yaml.dump_all(made, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
