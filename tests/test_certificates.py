"""Clusters whose certificates have no Authority Key Identifier, as EKS issues them.

Python 3.13 refuses those by default, and so does urllib3 there. These tests set what it sets, on any Python.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3.connection
import urllib3.util.ssl_
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import dlr.kube.api
from agent.kube.api import ApiClient
from controller.api.calls import Call
from controller.api.transport import Transport
from controller.connection import Connection
from controller.errors import ApiError
from controller.kubeconfig import load_connection
from dlr.kube.api import PODS, Api
from dlr.kube.connection import connect

pytestmark = pytest.mark.real

NOW = datetime.datetime.now(datetime.UTC)


def certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *extensions: x509.ExtensionType,
) -> bytes:
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - datetime.timedelta(hours=1))
        .not_valid_after(NOW + datetime.timedelta(days=1))
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`ca.crt`, `server.pem` (with its key) and `token`, as a service account has them."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    (tmp_path / "ca.crt").write_bytes(
        certificate(
            "kubernetes",
            ca_key,
            "kubernetes",
            ca_key,
            x509.BasicConstraints(ca=True, path_length=None),
            x509.KeyUsage(True, False, True, False, False, True, False, False, False),
            x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()),
        )
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    (tmp_path / "server.pem").write_bytes(certificate("api", key, "kubernetes", ca_key, address) + private)
    (tmp_path / "token").write_text("a-token")
    (tmp_path / "namespace").write_text("default")
    return tmp_path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"kind": "Pod", "metadata": {"name": "p"}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


class Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that does not trust us is what some tests are about."""


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    http = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    http.socket = context.wrap_socket(http.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True).start()
    yield f"https://127.0.0.1:{http.server_port}"
    http.shutdown()
    http.server_close()


@pytest.fixture(autouse=True)
def strict_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ssl.create_default_context` and urllib3 are under Python 3.13."""

    def strict(make: Any) -> Any:
        def strictly(*args: Any, **kwargs: Any) -> ssl.SSLContext:
            context: ssl.SSLContext = make(*args, **kwargs)
            context.verify_flags |= ssl.VERIFY_X509_STRICT
            return context

        return strictly

    monkeypatch.setattr(ssl, "create_default_context", strict(ssl.create_default_context))
    urllib3_makes = strict(urllib3.util.ssl_.create_urllib3_context)
    for module in (urllib3.connection, urllib3.util.ssl_, dlr.kube.api):
        monkeypatch.setattr(module, "create_urllib3_context", urllib3_makes, raising=False)


@pytest.fixture
def kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "kubeconfig"
    entry = {"server": server, "certificate-authority": str(folder / "ca.crt")}
    content = {
        "clusters": [{"name": "it", "cluster": entry}],
        "users": [{"name": "it", "user": {"token": "a-token"}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "current-context": "it",
    }
    path.write_text(yaml.safe_dump(content))
    return path


def foreign_ca(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    ca = certificate("other", key, "other", key, x509.BasicConstraints(ca=True, path_length=None))
    (folder / "ca.crt").write_bytes(ca)


def test_the_certificates_of_these_tests_are_such(folder: Path, server: str) -> None:
    client = urllib3.PoolManager(ssl_context=ssl.create_default_context(cafile=folder / "ca.crt"))
    with pytest.raises(urllib3.exceptions.MaxRetryError, match="Missing Authority Key Identifier"):
        client.request("GET", server, retries=0)


def test_agent_accepts_them_and_no_others(folder: Path, server: str) -> None:
    def client() -> ApiClient:
        ca_file, token_file = str(folder / "ca.crt"), folder / "token"
        connection = Connection(server, "the test", ca_file=ca_file, token_file=token_file)
        return ApiClient(connection, connect_timeout_seconds=300, read_timeout_seconds=300)

    assert client().get("/api/v1/pods/p")["kind"] == "Pod"
    foreign_ca(folder)
    with pytest.raises(ApiError, match="does not fit the test"):
        client().get("/api/v1/pods/p")


async def test_controller_accepts_them_and_no_others(folder: Path, kubeconfig: Path) -> None:
    async def status() -> int:
        transport = Transport(load_connection(kubeconfig))
        try:
            return (await transport.send(Call("GET", "/api/v1/pods/p"), 300)).status
        finally:
            await transport.close()

    assert await status() == 200
    foreign_ca(folder)
    with pytest.raises(ApiError, match="does not fit"):
        await status()


def test_commands_accept_them_and_no_others(folder: Path, kubeconfig: Path) -> None:
    def api() -> Api:
        return Api(connect(str(kubeconfig), None, None))

    assert api().get(PODS, "p")["kind"] == "Pod"
    foreign_ca(folder)
    with pytest.raises(ApiError, match="does not fit"):
        api().get(PODS, "p")


def test_commands_may_be_told_to_look_at_no_certificate(folder: Path, kubeconfig: Path) -> None:
    content = yaml.safe_load(kubeconfig.read_text())
    cluster = content["clusters"][0]["cluster"]
    del cluster["certificate-authority"]
    cluster["insecure-skip-tls-verify"] = True
    kubeconfig.write_text(yaml.safe_dump(content))
    assert Api(connect(str(kubeconfig), None, None)).get(PODS, "p")["kind"] == "Pod"
