"""The Pods' /etc/hosts, with the names of headless Services: who asks for one is never given an old address."""

from __future__ import annotations

from pathlib import Path

from localcluster.kubelet.hosts_files import HostsFiles
from localcluster.kubelet.volumes import service_name

OWN = b"127.0.0.1\tlocalhost\n"
SERVER = "job-ps-0.job.default.svc"


def resolved(path: Path, name: str) -> list[str]:
    """Addresses of a name, in the order of hosts(5)."""
    lines = (line.partition("#")[0].split() for line in path.read_text().splitlines())
    return [words[0] for words in lines if name in words[1:]]


def test_a_name_is_that_of_the_pod_that_has_it_now(tmp_path: Path) -> None:
    files, chief = HostsFiles(), tmp_path / "chief" / "hosts"
    files.introduce("127.8.0.1", "job-ps-0", tmp_path / "old" / "hosts", OWN, SERVER)
    files.introduce("127.8.0.2", "job-chief-0", chief, OWN)
    files.introduce("127.8.0.11", "job-ps-1", tmp_path / "other" / "hosts", OWN, "job-ps-1.job.default.svc")
    assert resolved(chief, SERVER) == ["127.8.0.1"]
    size = chief.stat().st_size
    files.forget("127.8.0.1")
    assert resolved(chief, SERVER) == [] and chief.stat().st_size == size
    files.introduce("127.8.0.3", "job-ps-0", tmp_path / "new" / "hosts", OWN, SERVER)
    assert resolved(chief, SERVER) == ["127.8.0.3"] == resolved(tmp_path / "other" / "hosts", SERVER)
    assert resolved(chief, "job-ps-1") == ["127.8.0.11", "::ffff:127.8.0.11"]
    assert resolved(chief, "localhost") == ["127.0.0.1"]


def test_a_pod_has_such_a_name_by_hostname_and_subdomain() -> None:
    metadata = {"name": "job-ps-0-1", "namespace": "ads"}
    spec = {"hostname": "job-ps-0", "subdomain": "job"}
    assert service_name({"metadata": metadata, "spec": spec}) == "job-ps-0.job.ads.svc"
    assert service_name({"metadata": metadata, "spec": {"hostname": "job-ps-0"}}) == ""
