"""Job files: YAML read as Kubernetes reads it, with the line of every value.

Only the API server validates a job. It answers with field paths, which become `file:line` here.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from crds import names
from dlr.commands.errors import CommandError
from dlr.kube.api import JSON

STDIN = "-"
PATH_STEP = re.compile(r"\[([^\]]*)\]|([^.\[\]]+)")


class _Loader(yaml.SafeLoader):
    """YAML restricted to JSON's types: a date remains text."""


_TAG = "tag:yaml.org,2002:"
_Loader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag in (None, *(_TAG + each for each in ("null", "bool", "int", "float", "str", "seq", "map")))
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class JobFile:
    """One ElasticJob of a file."""

    body: JSON
    source: str
    node: yaml.Node

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str | None:
        namespace = self.body["metadata"].get("namespace")
        return str(namespace) if namespace else None

    def where(self, path: str = "") -> str:
        """Return `file:line` of a field path such as `spec.replicaSpecs.worker.template.spec.containers[0]`.

        For a missing field, it is the line of the closest field that should contain it.
        """
        line = self.node.start_mark.line
        node = self.node
        for bracketed, plain in PATH_STEP.findall(path):
            step = _child(node, bracketed or plain)
            if step is None:
                break
            key, node = step
            line = key.start_mark.line
        return f"{self.source}:{line + 1}"


def read_jobs(filename: str) -> list[JobFile]:
    """Return every document of the file, all of which must be ElasticJobs with a name."""
    source = "standard input" if filename == STDIN else filename
    jobs = [_job(body, node, source) for body, node in _documents(filename, source)]
    if not jobs:
        raise CommandError(f"{source} has no ElasticJob in it.")
    return jobs


def read_documents(filename: str) -> list[JSON]:
    """Return every object of the file, of any kind, and the items of Lists."""
    source = "standard input" if filename == STDIN else filename
    documents = [body for body, _ in _documents(filename, source)]
    objects: list[Any] = []
    for document in documents:
        is_list = isinstance(document, dict) and document.get("kind") == "List"
        items = (document.get("items") or []) if is_list else [document]
        objects += items if isinstance(items, list) else [items]
    if not all(isinstance(each, dict) and isinstance(each.get("metadata") or {}, dict) for each in objects):
        raise CommandError(f"{source} is no file of Kubernetes objects.")
    return objects


def _documents(filename: str, source: str) -> Iterator[tuple[Any, yaml.Node]]:
    """Yield the non-empty documents, each with its tree of nodes."""
    text = _text(filename, source)
    loader: _Loader | None = None
    try:
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            if node and (body := loader.construct_document(node)) is not None:
                json.dumps(body)
                yield body, node
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        raise CommandError(f"{where} is not YAML: {error.problem or error.context}.") from error
    except yaml.YAMLError as error:
        raise CommandError(f"{source} is not YAML: {' '.join(str(error).split())}.") from error
    except RecursionError:
        raise CommandError(f"{source} is nested too deeply.") from None
    except ValueError as error:  # an invalid number, such as `0x_`, or an alias inside its own anchor
        raise CommandError(f"{source} is no JSON: {error}.") from error
    finally:
        if loader is not None:
            loader.dispose()


def _text(filename: str, source: str) -> str:
    if filename == STDIN and sys.stdin is None:
        raise CommandError(f"{source} cannot be read: it is closed.")
    try:
        return sys.stdin.read() if filename == STDIN else Path(filename).read_text()
    except OSError as error:
        raise CommandError(f"{source} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{source} cannot be read: it is not UTF-8 text.") from error


def _job(body: Any, node: yaml.Node, source: str) -> JobFile:
    job = JobFile(body, source, node)
    if not isinstance(body, dict) or "kind" not in body or "apiVersion" not in body:
        raise CommandError(
            f"{job.where()} is not a Kubernetes object: it needs apiVersion, kind and metadata.name."
        )
    if (body["apiVersion"], body["kind"]) != (names.API_VERSION, "ElasticJob"):
        raise CommandError(
            f"{job.where('kind')}: {body['apiVersion']} {body['kind']} is no {names.API_VERSION} ElasticJob; "
            "`dlr job submit` takes only those, and kubectl apply takes everything."
        )
    metadata = body.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise CommandError(f"{job.where('metadata')}: metadata.name is missing or is not text.")
    _refuse_doubled_keys(node, source)
    return job


def _refuse_doubled_keys(node: yaml.Node, source: str) -> None:
    """Refuse duplicate keys, of which YAML readers silently keep the last."""
    waiting, seen_nodes = [node], set[int]()
    while waiting:
        current = waiting.pop()
        if id(current) in seen_nodes:  # an alias
            continue
        seen_nodes.add(id(current))
        seen: set[str] = set()
        for key, value in current.value if isinstance(current, yaml.MappingNode) else ():
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                where = f"{source}:{key.start_mark.line + 1}"
                raise CommandError(f"{where}: the key {key.value!r} is there twice.")
            seen.add(key.value)
            waiting.append(value)
        waiting += current.value if isinstance(current, yaml.SequenceNode) else ()


def _child(node: yaml.Node, step: str) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the key (or item) and the value after one step of a path."""
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value if key.value == step), None)
    if isinstance(node, yaml.SequenceNode) and step.isdigit() and int(step) < len(node.value):
        return node.value[int(step)], node.value[int(step)]
    return None
