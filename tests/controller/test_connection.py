import pytest
import yaml

from controller import connection
from controller.connection import load_connection
from controller.errors import ConfigError


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


async def test_kubeconfig_gives_server_credentials_and_namespace(tmp_path):
    found = await load_connection(kubeconfig(tmp_path))
    assert found.base_url == "https://10.0.0.1:6443/prefix"
    assert found.namespace == "team"
    assert found.ssl_context is not None
    assert await found.authorization() == "Bearer secret"


async def test_another_context_can_be_chosen(tmp_path):
    found = await load_connection(kubeconfig(tmp_path), context="bare")
    assert found.namespace == "default" and await found.authorization() == "Bearer secret"


async def test_environment_names_the_kubeconfig(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/missing:{kubeconfig(tmp_path)}")
    assert (await load_connection()).namespace == "team"


async def test_token_file_is_read_again(tmp_path, monkeypatch):
    token = tmp_path / "token"
    token.write_text("first\n")
    path = kubeconfig(tmp_path, users=[{"name": "u", "user": {"tokenFile": str(token)}}])
    found = await load_connection(path)
    assert await found.authorization() == "Bearer first"
    token.write_text("second")
    assert await found.authorization() == "Bearer first"
    monkeypatch.setattr(connection.time, "monotonic", lambda: 1e12)
    assert await found.authorization() == "Bearer second"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{{{", "cannot read the kubeconfig"),
        ("just text", "does not have the shape of a kubeconfig"),
        ("", "does not have the shape of a kubeconfig"),
        ("current-context: x", "cannot read the kubeconfig"),
        ("a: [1, 2", "cannot read the kubeconfig"),
    ],
)
async def test_unreadable_kubeconfig_is_one_sentence(tmp_path, content, says):
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        await load_connection(path)
    assert says in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"current-context": "nowhere"},
        {"clusters": []},
        {"clusters": [{"name": "c", "cluster": {"server": "nonsense"}}]},
        {"clusters": [{"name": "c", "cluster": {"server": "https://x", "certificate-authority-data": "!"}}]},
        {
            "clusters": [
                {"name": "c", "cluster": {"server": "https://x", "certificate-authority": "/no/file"}}
            ]
        },
    ],
)
async def test_kubeconfig_that_leads_nowhere_is_one_sentence(tmp_path, changes):
    with pytest.raises(ConfigError) as caught:
        await load_connection(kubeconfig(tmp_path, **changes))
    assert "\n" not in str(caught.value)


async def test_missing_kubeconfig_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(ConfigError, match=f"there is no kubeconfig at {tmp_path}/none"):
        await load_connection(tmp_path / "none")


async def test_pod_without_its_service_account_is_one_sentence(monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigError, match="cannot use the Pod's service account"):
        await load_connection()
