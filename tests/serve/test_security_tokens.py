"""JWTs: real keys, real signatures, and everything that is nearly one of ours (S2, alg confusion, kid floods)."""

import asyncio
import hashlib
import hmac
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import time
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from forebay.core.errors import Invalid
from forebay.serve.actor import Role
from forebay.serve.app import create_app
from forebay.serve.security.auth import Authenticator
from forebay.serve.security.tokens import REFETCH_SECONDS, TokenRules, TokenVerifier
from forebay.store.protocol import Store
from tests.serve.site import Serving

ISSUER, AUDIENCE = "https://id.example", "forebay"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
OTHER = ed25519.Ed25519PrivateKey.generate()


def jwks() -> bytes:
    keys: list[dict[str, Any]] = [
        {**RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), "kid": "rsa"},
        {**ECAlgorithm(ECAlgorithm.SHA256).to_jwk(EC.public_key(), as_dict=True), "kid": "ec"},
        {**OKPAlgorithm.to_jwk(ED.public_key(), as_dict=True), "kid": "ed"},
        {"kty": "oct", "kid": "shared", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I"},
        {"kty": "nonsense", "kid": "odd"},
    ]
    return msgspec.json.encode({"keys": keys})


def claims(**others: Any) -> dict[str, Any]:
    now = int(time())
    given = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": now + 60, "roles": ["viewer"], **others}
    return {name: value for name, value in given.items() if value is not None}


def token(key: Any = ED, algorithm: str = "EdDSA", kid: str | None = "ed", **others: Any) -> str:
    return jwt.encode(claims(**others), key, algorithm, headers={"kid": kid} if kid else None)


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks())
    return str(path)


def rules(keys: str, **others: Any) -> TokenRules:
    return TokenRules(issuer=ISSUER, audience=AUDIENCE, jwks=keys, **others)


def bearer(tokens: TokenVerifier, text: str) -> Any:
    return asyncio.run(tokens.verify(text))


@pytest.mark.parametrize(("key", "algorithm", "kid"), [(RSA, "RS256", "rsa"), (EC, "ES256", "ec"), (ED, "EdDSA", "ed")])
def test_a_token_of_each_kind_names_its_bearer(keys: str, key: Any, algorithm: str, kid: str) -> None:
    found = bearer(TokenVerifier(rules(keys)), token(key, algorithm, kid))
    assert found.actor.name == "jwt:ada"
    assert found.actor.roles == {Role.VIEWER}


def confused() -> dict[str, str]:
    """Tokens that are nearly right, by what is wrong with them."""
    public = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    body = jwt.utils.base64url_encode(msgspec.json.encode(claims())).decode()
    unsigned = jwt.utils.base64url_encode(b'{"alg":"none","kid":"ed"}').decode()
    hs_head = jwt.utils.base64url_encode(b'{"alg":"HS256","kid":"rsa"}').decode()
    mac = hmac.digest(public, f"{hs_head}.{body}".encode(), hashlib.sha256)
    good = token()
    return {
        "alg none": f"{unsigned}.{body}.",
        "alg none with a signature": f"{unsigned}.{body}.{good.rsplit('.', 1)[1]}",
        "HS256 by the public key": f"{hs_head}.{body}.{jwt.utils.base64url_encode(mac).decode()}",
        "HS256 by a shared key of the list": jwt.encode(
            claims(), b"secret-secret-secret-secret-secr", "HS256", headers={"kid": "shared"}
        ),
        "RS512 where RS256 is right": token(RSA, "RS512", "rsa"),
        "another kind's kid": token(ED, "EdDSA", "rsa"),
        "signed by another key": token(OTHER),
        "no kid": token(kid=None),
        "unknown kid": token(kid="unknown"),
        "expired": token(exp=int(time()) - 120),
        "no expiry": token(exp=None),
        "not yet": token(nbf=int(time()) + 3_600),
        "another audience": token(aud="somebody-else"),
        "no audience": token(aud=None),
        "another issuer": token(iss="https://evil.example"),
        "no subject": token(sub=None),
        "no roles": token(roles=None),
        "roles of a wrong type": token(roles={"viewer": True}),
        "cut": good[:-2],
        "changed": good.replace(good.split(".")[1], body[:-2] + "AA"),
        "huge": good + "A" * 10_000,
        "empty": "",
        "noise": "a.b.c",
    }


@pytest.mark.parametrize("wrong", sorted(confused()))
def test_what_is_nearly_a_token_is_refused(keys: str, wrong: str) -> None:
    tokens = TokenVerifier(rules(keys))
    assert bearer(tokens, token()) is not None
    assert bearer(tokens, confused()[wrong]) is None


def test_only_the_algorithms_of_the_rules_count(keys: str) -> None:
    tokens = TokenVerifier(rules(keys, algorithms=("EdDSA",)))
    assert bearer(tokens, token()) is not None
    assert bearer(tokens, token(RSA, "RS256", "rsa")) is None


def test_clocks_may_differ_by_the_leeway_and_no_more(keys: str) -> None:
    tokens = TokenVerifier(rules(keys, leeway=30))
    assert bearer(tokens, token(exp=int(time()) - 10)) is not None
    assert bearer(tokens, token(exp=int(time()) - 45)) is None
    with pytest.raises(Invalid):
        rules(keys, leeway=3_600)


def test_claims_become_roles_queues_and_tenant(keys: str) -> None:
    tokens = TokenVerifier(rules(keys, roles="realm.roles", queues="https://forebay/queues", tenant="org"))
    found = bearer(
        tokens,
        token(realm={"roles": ["producer", "emperor"]}, org="acme", roles=None, **{"https://forebay/queues": "a b.*"}),
    )
    assert found.actor.roles == {Role.PRODUCER}
    assert (found.actor.queues, found.actor.tenant) == (("a", "b.*"), "acme")
    assert bearer(tokens, token(realm={"roles": ["producer"]}, **{"https://forebay/queues": "a"})) is None
    assert bearer(tokens, token(realm={"roles": ["producer"]}, org="acme")) is None
    listed: dict[str, Any] = {"https://forebay/queues": ["a"]}
    worker = bearer(tokens, token(realm={"roles": "worker"}, org="acme", **listed))
    assert worker.actor.tenant is None


@pytest.mark.parametrize(
    "bad",
    [
        {"jwks": "http://id.example/keys"},
        {"jwks": "ftp://id.example/keys"},
        {"jwks": "/no/such/file"},
        {"algorithms": ("HS256",)},
        {"algorithms": ("none",)},
        {"algorithms": ()},
        {"issuer": ""},
        {"audience": ""},
    ],
)
def test_rules_that_would_be_unsafe_are_refused(keys: str, bad: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        TokenRules(**{"issuer": ISSUER, "audience": AUDIENCE, "jwks": keys, **bad})


class Issuer:
    """A real server that gives keys, and counts its requests."""

    def __init__(self) -> None:
        self.requested = 0
        self.answer = jwks()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.requested += 1
                if self.path == "/moved":
                    self.send_response(302)
                    self.send_header("Location", "/keys")
                    self.end_headers()
                    return
                self.send_response(200)
                self.end_headers()
                self.wfile.write(issuer.answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    issuer = Issuer()
    yield issuer
    issuer.stop()


def test_a_flood_of_unknown_kids_asks_the_issuer_once_in_a_while(issuer: Issuer) -> None:
    now = [0.0]
    tokens = TokenVerifier(rules(issuer.url + "/keys"), lambda: now[0])

    async def flood() -> list[Any]:
        return await asyncio.gather(*(tokens.verify(token(kid=f"kid-{number}")) for number in range(200)))

    assert asyncio.run(flood()) == [None] * 200
    assert [bearer(tokens, token(kid=f"kid-{number}")) for number in range(20)] == [None] * 20
    assert issuer.requested == 1
    assert bearer(tokens, token()) is not None
    now[0] += REFETCH_SECONDS
    assert asyncio.run(flood()) == [None] * 200
    assert issuer.requested == 2


def test_new_keys_of_the_issuer_are_learnt(issuer: Issuer) -> None:
    now = [0.0]
    tokens = TokenVerifier(rules(issuer.url + "/keys"), lambda: now[0])
    assert bearer(tokens, token(OTHER, kid="new")) is None
    issuer.answer = msgspec.json.encode(
        {"keys": [{**OKPAlgorithm.to_jwk(OTHER.public_key(), as_dict=True), "kid": "new"}]}
    )
    assert bearer(tokens, token(OTHER, kid="new")) is None
    now[0] += REFETCH_SECONDS
    assert bearer(tokens, token(OTHER, kid="new")) is not None
    assert bearer(tokens, token()) is None


@pytest.mark.parametrize("bad", [b"", b"no json", b"[]", b'{"keys": 5}', b'{"keys": [5]}', b" " * 300_000])
def test_an_issuer_with_invalid_answers_lets_no_caller_in_and_breaks_nothing(issuer: Issuer, bad: bytes) -> None:
    issuer.answer = bad
    assert bearer(TokenVerifier(rules(issuer.url + "/keys")), token()) is None


def test_redirects_are_not_followed_and_a_silent_issuer_is_no_bearer(issuer: Issuer) -> None:
    assert bearer(TokenVerifier(rules(issuer.url + "/moved")), token()) is None
    assert issuer.requested == 1
    assert bearer(TokenVerifier(rules("http://127.0.0.1:1/keys")), token()) is None


def test_a_server_takes_tokens_as_it_takes_keys(store: Store, serve_on: Serving, keys: str) -> None:
    site = serve_on(
        store, app=create_app(store, authenticator=Authenticator.of(store, tokens=TokenVerifier(rules(keys))))
    )
    assert site.with_key(token()).get("/queues").status_code == 200
    assert site.with_key(token(roles=["producer"])).get("/queues").status_code == 403
    for wrong in ("alg none", "HS256 by the public key", "expired", "another audience"):
        assert site.with_key(confused()[wrong]).get("/queues").status_code == 401
