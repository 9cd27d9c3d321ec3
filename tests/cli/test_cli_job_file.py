"""Job files are read as Kubernetes reads them, and every complaint has a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlr.commands.errors import CommandError
from dlr.commands.job.file import read_documents, read_jobs

JOB = """\
# a comment
apiVersion: elastic.iml.github.io/v1alpha1
kind: ElasticJob
metadata:
  name: digits
spec:
  replicaSpecs:
    worker:
      replicas: 3
      template:
        spec:
          containers:
            - name: main
              env:
                - {name: DATE, value: 2026-01-01}
            - name: side
"""


def write(folder: Path, text: str) -> str:
    path = folder / "job.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("", 2),
        ("metadata.name", 5),
        ("spec.replicaSpecs.worker.replicas", 9),
        ("spec.replicaSpecs[worker].replicas", 9),
        ("spec.replicaSpecs.worker.template.spec.containers[1].name", 16),
        ("spec.replicaSpecs.worker.template.spec.containers[0].image", 13),
        ("spec.elasticPolicy.nodeUnit", 6),
        ("<nil>", 2),
    ],
)
def test_field_path_leads_to_its_line_or_the_closest_above(tmp_path: Path, path: str, line: int) -> None:
    (job,) = read_jobs(write(tmp_path, JOB))
    assert job.where(path) == f"{tmp_path}/job.yaml:{line}"


def test_every_document_is_a_job_with_its_own_lines(tmp_path: Path) -> None:
    first, second = read_jobs(write(tmp_path, f"---\n{JOB}---\n{JOB.replace('digits', 'more')}---\n"))
    assert (first.name, second.name) == ("digits", "more")
    assert second.where("metadata.name").endswith(":23")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1\nb: 2\n", r"job\.yaml:2 is not YAML"),
        ("a:\n\t- b\n", r"job\.yaml:2 is not YAML"),
        ("apiVersion: v1\nkind: ConfigMap\n", r"job\.yaml:2: v1 ConfigMap is no .* ElasticJob"),
        (JOB.replace("  name: digits", "  labels: {}"), r"job\.yaml:4: metadata.name is missing"),
        (JOB.replace("      replicas: 3", "      replicas: 3\n      replicas: 4"), r"job\.yaml:10: .*twice"),
        (JOB + "  nodeUnit: 0x_\n", r"job\.yaml is no JSON: invalid literal"),
        (JOB + "  nodeUnit: !!binary aGVsbG8=\n", r"job\.yaml:\d+ is not YAML: .*binary"),
        (JOB + "  policy: &a\n    it: *a\n", r"job\.yaml is no JSON: Circular reference"),
        (JOB + "  nodeUnit: \x00\n", r"job\.yaml is not YAML: unacceptable character #x0000"),
    ],
)
def test_bad_file_is_one_sentence_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(CommandError, match=says) as raised:
        read_jobs(write(tmp_path, text))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text", ["kind: List\nitems: [a, null]\n", "kind: List\nitems: a\n", "metadata: a\n", "- a\n"]
)
def test_a_file_of_other_things_than_objects_is_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(CommandError, match="is no file of Kubernetes objects"):
        read_documents(write(tmp_path, text))


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("spec: " + "[" * 1_000 + "]" * 1_000)
    with pytest.raises(CommandError, match="is nested too deeply"):
        read_documents(str(tmp_path / "job.yaml"))
