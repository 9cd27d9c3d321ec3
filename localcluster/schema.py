"""Schemas, compiled: pruning, defaulting and validating the objects of one kind.

Objects are never changed in place, and a patched object shares its unchanged parts with the old one (see
`patches`). So `old` serves transition rules, and every part of the new object that is identical (`is`) to its
part of `old` is skipped.
"""

from __future__ import annotations

from localcluster.field_errors import FieldError, Finding, Reason
from localcluster.field_errors import render_path as render
from localcluster.pruning import DefaultingCompiler, PruningCompiler, UnknownField
from localcluster.resource import JSON
from localcluster.rules import RulesCompiler
from localcluster.schema_nodes import Components, build
from localcluster.validation import ValidationCompiler

_BLOCKING = (Reason.NOT_SUPPORTED, Reason.REQUIRED, Reason.TOO_LONG, Reason.TOO_MANY, Reason.TYPE_INVALID)
"""Faults that make it pointless to ask the rules."""


class CompiledSchema:
    """Functions of a kind's schema: prune, default and validate its objects."""

    def __init__(self, schema: JSON, components: Components, *, custom: bool) -> None:
        """`custom`: the schema of a CRD, which implies apiVersion, kind and metadata and may have rules."""
        root = build(schema, components, is_resource=custom)
        self._prune = PruningCompiler().pruner(root)
        self._default = DefaultingCompiler().defaulter(root)
        self._check = ValidationCompiler(list_types=custom).check(root)
        self._rules = RulesCompiler().check(root) if custom else None

    def prune(self, obj: JSON, old: JSON | None = None) -> tuple[JSON, list[str]]:
        """The object without the fields that its schema does not know, and these fields' paths."""
        unknown: list[UnknownField] = []
        pruned: JSON = self._prune(obj, old, unknown)
        paths = sorted(render(tuple(reversed(path)), brackets=False) for path in unknown)
        return pruned, paths

    def default(self, obj: JSON, old: JSON | None = None) -> JSON:
        """The object with its schema's defaults, and without nulls where null is no value."""
        if self._default is None:
            return obj
        completed: JSON = self._default(obj, old)
        return completed

    def validate(self, obj: JSON, old: JSON | None = None) -> list[FieldError]:
        """Return the faults of an object; `old` is its stored state, None for a new one."""
        found: list[Finding] = []
        if self._check is not None:
            self._check(obj, old, found)
        blocked = any(finding.reason in _BLOCKING for finding in found)
        if self._rules is not None and not blocked:
            self._rules.run(obj, old, found)
        return [finding.error() for finding in found]
