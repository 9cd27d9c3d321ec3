import asyncio
import json

import pytest
import yaml

from agent.kube.api import ApiClient
from controller.client import AsyncClient
from controller.errors import ConfigError, Unauthorized
from controller.kubeconfig import load_connection
from tests.controller.fake_api import fake_api


def kubeconfig(tmp_path, **changes):
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/prefix/"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "bare", "context": {"cluster": "c", "user": "u"}},
        ],
        **changes,
    }
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(autouse=True)
def no_cluster_around(monkeypatch):
    for variable in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(variable, raising=False)


def test_kubeconfig_gives_server_credentials_and_namespace(tmp_path):
    found = load_connection(kubeconfig(tmp_path))
    assert found.server == "https://10.0.0.1:6443/prefix"
    assert found.namespace == "team"
    assert found.ssl_context() is not None
    assert found.authorization() == {"Authorization": "Bearer secret"}


def test_token_file_is_read_again(tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    path = kubeconfig(tmp_path, users=[{"name": "u", "user": {"tokenFile": str(token)}}])
    found = load_connection(path)
    assert found.authorization() == {"Authorization": "Bearer first"}
    token.write_text("second")
    assert found.authorization() == {"Authorization": "Bearer second"}


@pytest.fixture
def plugin(tmp_path):
    """A kubeconfig with a login plugin that gives the token `old`, and from the second time on `new`."""
    program, count = tmp_path / "plugin", tmp_path / "count"
    version = "client.authentication.k8s.io/v1"
    credential = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "TOKEN"}}
    program.write_text(
        f"""#!/bin/sh
        echo asked >>{count}
        token=new; test "$(wc -l <{count})" = 1 && token=old
        echo '{json.dumps(credential)}' | sed "s/TOKEN/$token/"
        """
    )
    program.chmod(0o700)
    login = {"apiVersion": version, "command": "./plugin"}  # as kubectl reads it, from beside the file

    def write(server):
        clusters = [{"name": "c", "cluster": {"server": server}}]
        return kubeconfig(tmp_path, users=[{"name": "u", "user": {"exec": login}}], clusters=clusters)

    write.count = lambda: len(count.read_text().splitlines())
    return write


@pytest.mark.real
async def test_login_plugin_is_asked_again_when_its_credentials_are_refused_and_not_too_often(plugin):
    async with fake_api() as api:
        api.fail_next(401)
        async with AsyncClient(load_connection(plugin(api.url))) as client:
            assert (await client.version())["gitVersion"]
            assert plugin.count() == 2 and client._transport.connection.token == "new"
            api.fail_next(401)
            with pytest.raises(Unauthorized):
                await client.version()
            assert plugin.count() == 2


@pytest.mark.real
async def test_commands_too_ask_the_login_plugin_again(plugin):
    async with fake_api() as api:
        client = ApiClient(load_connection(plugin(api.url)))
        api.fail_next(401)
        assert (await asyncio.to_thread(client.get, "/version"))["gitVersion"]
        assert plugin.count() == 2 and client.connection.token == "new"
        api.fail_next(401)
        with pytest.raises(Unauthorized):
            await asyncio.to_thread(client.get, "/version")
        assert plugin.count() == 2


def test_openid_connect_login_gives_its_token(tmp_path):
    token = "eyJhbGciOiJub25lIn0.e30.c2lnbmF0dXJl"
    provider = {"name": "oidc", "config": {"id-token": token}}
    found = load_connection(kubeconfig(tmp_path, users=[{"name": "u", "user": {"auth-provider": provider}}]))
    assert found.token == token and found.renew is not None


def test_missing_kubeconfig_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(ConfigError, match=f"{tmp_path}/none, which does not exist"):
        load_connection(tmp_path / "none")


def test_pod_without_its_service_account_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"there is no kubeconfig at {tmp_path}"):
        load_connection()
