"""The cluster's own certificate authority, server certificate, token key and admin token.

Made once and kept in the cluster's private folder, so that kubeconfigs and running Pods stay valid when the
API server is started again.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from localcluster.paths import Home, write_private

LIFETIME = datetime.timedelta(days=3650)
CLOCK_SKEW = datetime.timedelta(hours=1)
DNS_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
ADDRESSES = ("127.0.0.1", "::1")


@dataclass(frozen=True)
class Identity:
    """The server's certificate, and the key that it signs with."""

    ca_certificate: bytes
    token_key: bytes
    admin_token: str
    tls: ssl.SSLContext


def load_identity(home: Home) -> Identity:
    """Read the cluster's keys, making them on first use."""
    pki = home.pki
    certificate, key = pki / "server.crt", pki / "server.key"
    if not (home.ca_certificate.exists() and certificate.exists() and key.exists()):
        _make_certificates(home.ca_certificate, certificate, key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.load_cert_chain(certificate, key)
    return Identity(
        ca_certificate=home.ca_certificate.read_bytes(),
        token_key=bytes.fromhex(_kept_secret(pki / "token.key")),
        admin_token=_kept_secret(home.admin_token),
        tls=tls,
    )


def write_kubeconfig(home: Home, identity: Identity, server: str) -> None:
    """The admin's way in."""
    name = "dlr"
    cluster = {
        "server": server,
        "certificate-authority-data": base64.b64encode(identity.ca_certificate).decode(),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"token": identity.admin_token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
        "current-context": name,
    }
    write_private(home.kubeconfig, yaml.safe_dump(config, sort_keys=False).encode())


def _kept_secret(path: Path) -> str:
    if not path.exists():
        write_private(path, secrets.token_hex(32).encode())
    return path.read_text().strip()


def _make_certificates(ca_path: Path, certificate_path: Path, key_path: Path) -> None:
    """A new authority signs the server's certificate, and its own key is thrown away."""
    ca_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dlr local cluster")])
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in DNS_NAMES]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in ADDRESSES]
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    server = (
        _builder(server_name, ca_name, server_key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(authority, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = server_key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(key_path, private)
    write_private(certificate_path, server.public_bytes(encoding))
    write_private(ca_path, ca.public_bytes(encoding))


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
