"""Where a server may listen, TLS, and client certificates: a real server, with certificates made here (S2)."""

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from forebay.core.errors import Invalid
from forebay.serve.actor import Role
from forebay.serve.app import create_app
from forebay.serve.security.auth import Authenticator, Certificates
from forebay.serve.security.connections import common_name
from forebay.serve.settings import ServeSettings, check_bind, is_loopback
from forebay.store.protocol import Store
from tests.serve.site import Serving, Site

KEYS = ["keys"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_this_machine_is_always_allowed(host: str) -> None:
    assert is_loopback(host)
    assert check_bind(host, tls=False, auth_methods=[], insecure=False) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "forebay.example", "", "2130706433"])
def test_beyond_this_machine_needs_keys_and_tls_or_the_word(host: str) -> None:
    assert not is_loopback(host)
    for ways, tls, insecure in (([], False, False), ([], True, False), ([], True, True), (KEYS, False, False)):
        with pytest.raises(Invalid):
            check_bind(host, tls=tls, auth_methods=ways, insecure=insecure)
    assert check_bind(host, tls=True, auth_methods=KEYS, insecure=False) == []
    (warning,) = check_bind(host, tls=False, auth_methods=KEYS, insecure=True)
    assert "without TLS" in warning


_USES = (
    "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign crl_sign "
    "encipher_only decipher_only"
).split()


class Authority:
    """Makes certificates, and writes them where a server or a client finds them."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own = self._built(self._name, self._key.public_key(), authority=True)
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(own.public_bytes(Encoding.PEM))

    def _built(self, name: x509.Name, public: ec.EllipticCurvePublicKey, *, authority: bool) -> x509.Certificate:
        now, use = datetime.now(UTC), "key_cert_sign" if authority else "digital_signature"
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
            # Python 3.13 refuses certificates that do not say what they are for, and by which key they were signed.
            .add_extension(x509.KeyUsage(**dict.fromkeys(_USES, False) | {use: True}), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        )
        return builder.sign(self._key, SHA256())

    def issue(self, *names: str) -> tuple[str, str]:
        """The files of a certificate with these common names, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
        certificate, secret = self._directory / f"{names[0]}.crt", self._directory / f"{names[0]}.key"
        certificate.write_bytes(self._built(subject, key.public_key(), authority=False).public_bytes(Encoding.PEM))
        secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return str(certificate), str(secret)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "authority")


@pytest.fixture
def secured(store: Store, serve_on: Serving, authority: Authority) -> Site:
    """A server that requires a certificate of every client; `mailer` is a worker of the queue mail by its
    certificate."""
    certificate, key = authority.issue("server")
    settings = ServeSettings(port=0, tls_cert=certificate, tls_key=key, tls_client_ca=str(authority.file), drain=1)
    roles = Path(certificate).parent / "roles.json"
    roles.write_text('{"mailer": {"roles": ["worker"], "queues": ["mail"]}}')
    authenticator = Authenticator.of(store, certificates=Certificates.from_file(roles))
    return serve_on(store, settings, create_app(store, settings, authenticator=authenticator))


def client(site: Site, authority: Authority, shown: tuple[str, str] | None, key: str | None = None) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(authority.file))
    if shown is not None:
        context.load_cert_chain(*shown)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=site.url, verify=context, headers=headers, trust_env=False)


@pytest.fixture
def stranger(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "elsewhere").mkdir()
    return Authority(tmp_path / "elsewhere", "others").issue("mailer")


def test_a_certificate_is_a_caller_with_its_roles_and_queues(secured: Site, authority: Authority) -> None:
    with client(secured, authority, authority.issue("mailer")) as mailer:
        assert mailer.post("/claim", json={"wants": [{"queue": "mail"}]}).status_code == 200
        assert mailer.post("/claim", json={"wants": [{"queue": "media"}]}).status_code == 404
        assert mailer.get("/queues").status_code == 403
        assert mailer.get("/health").headers["strict-transport-security"]


def test_a_name_without_roles_shows_a_key_and_a_key_goes_before_a_certificate(
    secured: Site, authority: Authority
) -> None:
    with client(secured, authority, authority.issue("somebody")) as unknown:
        assert unknown.get("/queues").status_code == 401
    with client(secured, authority, authority.issue("mailer", "admin")) as two_names:
        assert two_names.post("/claim", json={"wants": [{"queue": "mail"}]}).status_code == 401
    with client(secured, authority, authority.issue("mailer"), secured.key(Role.VIEWER)) as viewer:
        assert viewer.get("/queues").status_code == 200
        assert viewer.post("/claim", json={"wants": [{"queue": "mail"}]}).status_code == 403
    with client(secured, authority, authority.issue("mailer"), "fb_wrong") as wrong:
        assert wrong.post("/claim", json={"wants": [{"queue": "mail"}]}).status_code == 401


def test_without_a_certificate_of_the_authority_there_is_no_connection(
    secured: Site, authority: Authority, stranger: tuple[str, str]
) -> None:
    for shown in (None, stranger):
        with client(secured, authority, shown) as outside, pytest.raises((httpx.TransportError, ssl.SSLError)):
            outside.get("/health")


def test_cookies_are_secure_under_tls(secured: Site, authority: Authority) -> None:
    with client(secured, authority, authority.issue("browser")) as browser:
        key = secured.key(Role.VIEWER)
        answer = browser.post("/ui/login", data={"key": key}, headers={"Origin": secured.url})
        (cookie,) = answer.headers.get_list("set-cookie")
        assert cookie.startswith("__Host-forebay=")
        assert "secure" in cookie.lower()
        plain = {"Origin": secured.url.replace("https", "http")}
        assert browser.post("/ui/login", data={"key": key}, headers=plain).status_code == 403


def test_a_certificate_without_one_name_is_refused() -> None:
    assert common_name(None) is None
    assert common_name({}) is None
    assert common_name({"subject": ((("commonName", "a"),), (("commonName", "b"),))}) is None
    assert common_name({"subject": ((("organizationName", "o"), ("commonName", "a")),)}) == "a"


def test_a_bad_file_of_roles_is_refused(tmp_path: Path) -> None:
    for text in ("", "[]", '{"a": {"roles": ["emperor"]}}', '{"a": {"roles": ["viewer"], "more": 1}}'):
        (tmp_path / "roles.json").write_text(text)
        with pytest.raises(Invalid):
            Certificates.from_file(tmp_path / "roles.json")
