"""Helm chart, generated from the manifests that kustomize and `dlr install` use.

A template is the YAML of such a manifest. Lines that depend on a value are in an `if`, with both variants
rendered from the manifests. Namespaces and images are texts that values replace, as in `deploy.documents`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

import deploy
from crds.release import VERSION
from deploy.kustomize import Document, render, resources
from release.chart_texts import NOTES, QUOTAS, TEST, VALUES, pod_values

NAME = "dlr"

CONDITIONS = {
    "../crds": ".Values.crds",
    "users": ".Values.userRoles",
    "admission": ".Values.admissionPolicies",
    "flowcontrol": ".Values.flowSchemas",
    "namespaced": ".Values.jobsNamespace",
    "network": ".Values.networkPolicy",
    "priority": ".Values.priorityClass",
    "kueue": ".Values.kueue",
    "kueue-namespaced": "and .Values.kueue .Values.jobsNamespace",
    "metrics": ".Values.metrics",
}
"""Folders of `deploy/`, with the condition under which their objects are installed."""

TEXTS = {
    deploy.DEFAULT_NAMESPACE: "{{ .Release.Namespace }}",
    deploy.DEFAULT_JOBS_NAMESPACE: "{{ .Values.jobsNamespace }}",
    deploy.DEFAULT_IMAGE: "{{ .Values.images.controller }}",
    deploy.DEFAULT_AGENT_IMAGE: "{{ .Values.images.agent }}",
    deploy.DEFAULT_CHECK_IMAGE: "{{ .Values.images.worker }}",
}
_TEXT = re.compile("|".join(map(re.escape, TEXTS)))
_ACTION = re.compile(r"\{\{|\}\}")
_FOLDER = Path(deploy.__file__).parent
_ARGUMENTS = (
    r"{{- if .Values.kueue }}\n\1--kueue\n{{- end }}\n"
    r'{{- if ne .Values.cordon "enforce" }}\n\1--cordon={{ .Values.cordon }}\n{{- end }}\n'
    r"{{- range .Values.extraArgs }}\n\1{{ . | quote }}\n{{- end }}\n"
)
"""Further arguments of the controller, inserted after one whose indentation they take."""

_VARIABLES = r"{{- range .Values.extraEnv }}\n\1- {{ toJson . }}\n{{- end }}\n"
"""Further variables of the controller, inserted before the first, whose indentation they take."""

CHART = f"""\
apiVersion: v2
name: {NAME}
description: Elastic, self-healing PyTorch training on Kubernetes, without a per-job master
type: application
version: {VERSION}
appVersion: {VERSION}
kubeVersion: ">=1.30.0-0"
"""


def files() -> dict[str, str]:
    """Return the files of the chart by path."""
    templates = {f"templates/{name}.yaml": text for name, text in _templates()}
    schema = _schema(yaml.safe_load(VALUES))
    schema["properties"] |= _FREE
    return {
        "Chart.yaml": CHART,
        "values.yaml": VALUES,
        "values.schema.json": json.dumps(schema, indent=2) + "\n",
        "templates/NOTES.txt": NOTES,
        "templates/quotas.yaml": QUOTAS,
        "templates/tests/doctor.yaml": TEST,
        **templates,
    }


def _schema(value: Any) -> Document:
    """Return a JSON schema that allows only the values in values.yaml, with their types."""
    if isinstance(value, dict):
        properties = {name: _schema(each) for name, each in value.items()}
        return {"type": "object", "additionalProperties": False, "properties": properties | _SUBCHART}
    if isinstance(value, list):
        return {"type": "array", "items": {"type": "string", "minLength": 1}}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "integer", "minimum": 1}
    return {"type": "string", "minLength": min(len(value), 1)}


_OBJECTS: Document = {"type": "array", "items": {"type": "object"}}
_FREE: Document = {
    "imagePullSecrets": {
        "type": "array",
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name"],
            "properties": {"name": {"type": "string", "minLength": 1}},
        },
    },
    "nodeSelector": {"type": "object", "additionalProperties": {"type": "string"}},
    "tolerations": _OBJECTS,
    "extraEnv": _OBJECTS,
    "affinity": {"type": "object"},
    "resources": {"type": "object"},
    "cordon": {"enum": ["enforce", "report", "off"]},
}
"""Schemas that values.yaml does not show: Kubernetes' own types, and a choice."""

_SUBCHART: Document = {"global": {"type": "object"}}
"""Property that Helm adds if this chart is a dependency of another."""


def _templates() -> Iterator[tuple[str, str]]:
    """Yield name and text of each template: one per folder, with its documents in order."""
    texts: dict[str, list[str]] = {}
    for folder, lines in _extras():
        texts.setdefault(folder, []).extend(lines)
    variants = zip(
        *(
            _base(*components)
            for components in ((), ("priority",), ("namespaced",), ("namespaced", "priority"))
        ),
        strict=True,
    )
    for folder, documents in zip(_folders(), variants, strict=True):
        if folder == "namespace.yaml":  # Helm itself must create it first
            continue
        everywhere, everywhere_first, in_one, in_one_first = map(_lines, documents)
        lines = either(
            either(everywhere, everywhere_first, CONDITIONS["priority"]),
            either(in_one, in_one_first, CONDITIONS["priority"]),
            CONDITIONS["namespaced"],
        )
        if documents[0]["kind"] == "PodDisruptionBudget":
            lines = _if("gt (int .Values.replicas) 1", lines)
        texts.setdefault(folder, []).extend(lines)
    for folder, lines in texts.items():
        name = folder.removeprefix("../")
        if condition := CONDITIONS.get(folder):
            # No dash before `end`: it would remove the last newline of a text.
            lines = [f"{{{{- if {condition} }}}}", *lines, "{{ end }}"]
        yield name, "\n".join(lines) + "\n"


def _base(*components: str) -> list[Document]:
    """Return the objects of every installation, as patched by these components."""
    return render(_FOLDER, [_FOLDER / name for name in components])[: len(_folders())]


def _folders() -> list[str]:
    """Return the base's resource of each of its objects."""
    (base,) = yaml.safe_load_all((_FOLDER / "kustomization.yaml").read_text())
    return [name for name in base["resources"] for _ in resources(_FOLDER, {"resources": [name]})]


def _extras() -> Iterator[tuple[str, list[str]]]:
    """Yield the lines of the objects outside the base, each with its folder."""
    for folder in ("namespaced", "network", "priority", "kueue-namespaced", "metrics"):
        for document in render(_FOLDER / folder):
            yield folder, _lines(document, names_jobs=folder != "metrics")
    kueue = _FOLDER / "kueue"
    everywhere = render(kueue)
    in_one = render(kueue, [_FOLDER / "kueue-namespaced"])[: len(everywhere)]
    for pair in zip(map(_lines, everywhere), map(_lines, in_one), strict=True):
        yield "kueue", either(*pair, CONDITIONS["namespaced"])


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes texts with replaceable parts, so that any value is possible, and writes no
    aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.Node:
        style = "|" if "\n" in text else '"' if _TEXT.search(text) else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def _lines(document: Document, *, names_jobs: bool = True) -> list[str]:
    """Return the lines of a document as a template.

    names_jobs: whether its text `dlr-jobs` is the namespace of jobs; a group of alerts has that name, too.
    """
    kind = document["kind"]
    if kind == "CustomResourceDefinition":
        annotated = {
            "annotations": {**document["metadata"].get("annotations", {}), "helm.sh/resource-policy": "keep"}
        }
        document = {**document, "metadata": document["metadata"] | annotated}
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    text = _ACTION.sub(lambda found: f'{{{{ "{found.group()}" }}}}', text)
    kept = set() if names_jobs else {deploy.DEFAULT_JOBS_NAMESPACE}
    text = _TEXT.sub(lambda found: found.group() if found.group() in kept else TEXTS[found.group()], text)
    if kind == "Deployment":
        text = re.sub(r"^  replicas: \d+$", "  replicas: {{ .Values.replicas }}", text, flags=re.MULTILINE)
        most = "--workers-per-namespace="
        text = re.sub(rf"{most}\d+", f"{most}{{{{ int .Values.workersPerNamespace }}}}", text)
        text = re.sub(rf"^( +- ){most}.*\n", rf"\g<0>{_ARGUMENTS}", text, flags=re.MULTILINE)
        text = re.sub(r"^( +)env:\n", rf"\g<0>{_VARIABLES}", text, count=1, flags=re.MULTILINE)
        text = _with_pod_values(text)
    return ["---", *text.splitlines()]


def _with_pod_values(deployment: str) -> str:
    """Return a Deployment's template with the values for the placement and resources of its Pods."""
    text = re.sub(r"^( +)serviceAccountName: .*\n", _after_account, deployment, count=1, flags=re.MULTILINE)
    block = re.compile(r"^( +)resources:\n(?:\1 .*\n)+", re.MULTILINE)
    return block.sub(lambda found: f"{found[1]}resources: {{{{ toJson .Values.resources }}}}\n", text)


def _after_account(found: re.Match[str]) -> str:
    return found.group() + pod_values(len(found[1]))


def either(off: Sequence[str], on: Sequence[str], condition: str) -> list[str]:
    """Return lines that render as `off` if a condition is false, and as `on` if it is true."""
    found: list[str] = []
    matcher = difflib.SequenceMatcher(a=off, b=on, autojunk=False)
    for operation, begin, end, on_begin, on_end in matcher.get_opcodes() if off != on else ():
        if operation == "equal":
            found += off[begin:end]
        elif begin == end:
            found += _if(condition, on[on_begin:on_end])
        else:
            instead = ["{{- else }}", *on[on_begin:on_end]] if on_begin < on_end else []
            found += _if(f"not {condition}", [*off[begin:end], *instead])
    return found or list(off)


def _if(condition: str, lines: Sequence[str]) -> list[str]:
    return [f"{{{{- if {condition} }}}}", *lines, "{{- end }}"]
