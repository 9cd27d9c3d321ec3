"""Which kubeconfig counts, and what is said of one that cannot be used."""

from __future__ import annotations

import base64
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from dlr.kube.connection import connect, find_source
from dlr.kube.errors import ApiError
from tests.cli.scripted import kubeconfig_for


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    found = {}
    for name in ("explicit", "environment", "user", "embedded"):
        found[name] = tmp_path / name
        found[name].write_text(yaml.safe_dump(kubeconfig_for(f"https://{name}:6443")))
    account = tmp_path / "account"
    account.mkdir()
    for name, text in (("token", "secret\n"), ("namespace", "team-a"), ("ca.crt", "…")):
        (account / name).write_text(text)
    return found | {"account": account}


def test_each_source_gives_way_to_the_one_before_it(files: dict[str, Path], tmp_path: Path) -> None:
    places = {"user_file": files["user"], "embedded_file": files["embedded"]}
    in_pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "DLR_SERVICEACCOUNT_DIR": str(files["account"])}
    named = {"KUBECONFIG": str(files["environment"])}
    absent = {"user_file": tmp_path / "none", "embedded_file": files["embedded"]}
    assert find_source(str(files["explicit"]), named | in_pod, **places).paths == (files["explicit"],)
    assert find_source(None, named | in_pod, **places).paths == (files["environment"],)
    assert find_source(None, in_pod, **places).paths == ()
    assert find_source(None, {}, **places).paths == (files["user"],)
    assert find_source(None, {}, **absent).paths == (files["embedded"],)


def test_of_several_kubeconfigs_the_first_to_say_something_counts(
    files: dict[str, Path], tmp_path: Path
) -> None:
    second = kubeconfig_for("https://second")
    second["contexts"].append({"name": "y", "context": {"cluster": "c", "user": "u", "namespace": "other"}})
    (tmp_path / "second").write_text(yaml.safe_dump(second))
    environment = {"KUBECONFIG": f"{files['explicit']}:{tmp_path / 'missing'}:{tmp_path / 'second'}"}
    assert connect(None, None, None, environment).server == "https://explicit:6443"
    assert connect(None, "y", None, environment).namespace == "other"


def test_inline_credentials_reach_disk_only_where_nobody_else_can_read(tmp_path: Path) -> None:
    config = kubeconfig_for("https://it")
    config["users"][0]["user"] = {
        f"client-{part}-data": base64.b64encode(part.encode()).decode() for part in ("certificate", "key")
    }
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    found = connect(str(path), None, None)
    assert found.client_certificate is not None
    key = Path(str(found.client_certificate[1]))
    assert key.read_text() == "key"
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    del found
    assert not key.exists()


def test_file_names_are_relative_to_their_kubeconfig(tmp_path: Path) -> None:
    config = kubeconfig_for("https://it")
    config["clusters"][0]["cluster"]["certificate-authority"] = "pki/ca.crt"
    config["users"][0]["user"] = {"tokenFile": "token"}
    (tmp_path / "pki").mkdir()
    (tmp_path / "pki" / "ca.crt").touch()
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    found = connect(str(tmp_path / "config"), None, None)
    assert found.ca_file == str(tmp_path / "pki" / "ca.crt")
    assert found.token_file == tmp_path / "token"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("clusters: [", r"config:\d+ is not YAML"),
        ("just text", "is not a kubeconfig"),
        ("clusters: [x]", "is not a kubeconfig"),
        ("clusters: []\ncontexts: []", r"no current-context.*--context"),
        ("contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x", "names cluster 'c'"),
        ("contexts: [{name: x, context: {}}]\ncurrent-context: y", r"no context 'y' \(it has: x\)"),
        ("created: 2026-13-45", "is not YAML: month must be in 1..12"),
        ("[" * 1000, "is not YAML: "),
    ],
)
def test_unusable_kubeconfig_is_one_sentence_that_names_it(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ApiError, match=says) as raised:
        connect(str(path), None, None)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("part", "fields", "says"),
    [
        (
            "cluster",
            {"server": "https://[::1"},
            r"names the server 'https://\[::1', which is not a valid address",
        ),
        (
            "cluster",
            {"certificate-authority": 5},
            "names the certificate-authority .*/5, which does not exist",
        ),
        ("cluster", {"server": "nonsense"}, "'nonsense'"),
        ("cluster", {"certificate-authority-data": "!"}, "certificate-authority-data"),
        ("cluster", {"proxy-url": "socks5://u:secret@it"}, "The proxy 'socks5://it' before the server of "),
        ("cluster", {"proxy-url": "it:3128"}, "must begin with http:// or https:// and a host"),
        pytest.param(
            "user",
            {"exec": {"command": "sh", "args": ["-c", "echo a; echo b >&2; exit 3"]}},
            "credentials: exec: ",
            marks=pytest.mark.real,
        ),
        pytest.param(
            "user",
            {"exec": {"command": "echo", "args": ["{}"], "env": ["A=B"]}},
            "its settings or its answer",
            marks=pytest.mark.real,
        ),
        ("context", {"user": "gone"}, "Context 'x' of .* names user 'gone', which does not exist"),
        ("user", {"auth-provider": {"name": "gcp"}}, "'gcp' of .* gave no credentials: its settings or its "),
    ],
)
def test_what_cannot_be_used_in_a_kubeconfig_is_one_sentence(
    tmp_path: Path, part: str, fields: dict[str, Any], says: str
) -> None:
    config = kubeconfig_for("https://it")
    if login := fields.get("exec"):
        login["apiVersion"] = "client.authentication.k8s.io/v1"
    config[f"{part}s"][0][part] |= fields
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    with pytest.raises(ApiError, match=says) as raised:
        connect(str(tmp_path / "config"), None, None)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)
