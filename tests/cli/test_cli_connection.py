"""Which kubeconfig counts, and what is said of one that cannot be used."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

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


def test_no_source_at_all_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match=r"dlr up.*--kubeconfig"):
        find_source(None, {}, tmp_path / "none", tmp_path / "neither")


def test_pods_use_their_service_account(files: dict[str, Path]) -> None:
    environment = {
        "KUBERNETES_SERVICE_HOST": "fd00::1",
        "KUBERNETES_SERVICE_PORT": "6443",
        "DLR_SERVICEACCOUNT_DIR": str(files["account"]),
    }
    found = connect(None, None, None, environment)
    assert (found.server, found.namespace) == ("https://[fd00::1]:6443", "team-a")
    assert found.token_file == files["account"] / "token"


def test_context_gives_the_namespace_and_the_option_overrides_it(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(kubeconfig_for("https://it", namespace="team-a")))
    assert connect(str(path), None, None).namespace == "team-a"
    assert connect(str(path), None, "team-b").namespace == "team-b"


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


def test_a_login_plugin_is_asked_once(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    answer = (
        '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"fresh"}}'
    )
    plugin.write_text(f"#!/bin/sh\necho '{answer}'\n")
    plugin.chmod(0o700)
    config = kubeconfig_for("https://it")
    config["users"][0]["user"] = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}
    }
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    assert connect(str(tmp_path / "config"), None, None).token == "fresh"
    plugin.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(ApiError, match="gave no credentials"):
        connect(str(tmp_path / "config"), None, None)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("clusters: [", r"config:\d+ is not YAML"),
        ("just text", "is not a kubeconfig"),
        ("clusters: 3", "is not a kubeconfig"),
        ("clusters: []\ncontexts: []", r"no current-context.*--context"),
        ("contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x", "names cluster 'c'"),
        ("contexts: [{name: x, context: {}}]\ncurrent-context: y", r"no context 'y' \(it has: x\)"),
    ],
)
def test_unusable_kubeconfig_is_one_sentence_that_names_it(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ApiError, match=says) as raised:
        connect(str(path), None, None)
    assert str(path) in str(raised.value)


def test_kubeconfig_that_is_a_folder_or_missing_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="cannot be read: Is a directory"):
        connect(str(tmp_path), None, None)
    with pytest.raises(ApiError, match=r"--kubeconfig names .*nowhere, which does not exist"):
        connect(str(tmp_path / "nowhere"), None, None)
    with pytest.raises(ApiError, match=r"\$KUBECONFIG names"):
        connect(None, None, None, {"KUBECONFIG": "/nowhere/at/all"})
