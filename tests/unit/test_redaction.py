"""Redaction: secrets are found by their names and by their form, and what is none stays as it is."""

import json
import logging
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.core.errors import Invalid
from forebay.core.redaction import DEFAULT, HIDDEN, Redaction
from forebay.work.redacting import VARIABLE, SecretFilter, install_secret_filter, rules

CARD = "4111 1111 1111 1111"
SECRETS = {
    "our own key": ("fb_0123456789ab_" + "A" * 32,) * 2,
    "a JWT": ("eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl",) * 2,
    "a URL's password": ("postgresql://ada:s3cr3t-w0rd@db.example/jobs", "s3cr3t-w0rd"),
    "a URL's odd password": ("redis://:p@ss/word@cache:6379/0", "p@ss/word"),
    "a connection string": ("host=db password=hunter-two user=ada", "hunter-two"),
    "a quoted password": ("login failed: {'password': 'correct horse'}", "correct horse"),
    "JSON in a text": ('body was {"api_key": "abc-123-xyz", "n": 1}', "abc-123-xyz"),
    "JSON in JSON": (r'"{\"client_secret\": \"abc-123-xyz\"}"', "abc-123-xyz"),
    "a header": ("Authorization: Bearer abcdef-123456", "abcdef-123456"),
    "another header": ("sent bearer ABCDEF-123456-GHI", "ABCDEF-123456-GHI"),
    "a list": ("{'secrets': ['abc-123', 'xyz-789'], 'n': 1}", "xyz-789"),
    "a cookie": ("Set-Cookie: sid-9f8e7d6c", "sid-9f8e7d6c"),
    "a query": ("GET /cb?access_token=zzz-yyy-xxx&x=1", "zzz-yyy-xxx"),
    "a cloud's key": ("using AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
    "a payment key": ("sk_live_4eC39HqLyjWDarjtT1zdp7dc",) * 2,
    "a forge's token": ("ghp_16C7e42F292c6912E7710c838347Ae178B4a",) * 2,
    "a chat's token": ("xoxb-2147483647-abcdefghij",) * 2,
    "a private key": ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAK\n-----END RSA PRIVATE KEY-----", "MIIEow"),
    "half a private key": ("-----BEGIN PRIVATE KEY-----\nMIIEvQ\nIBADAN", "IBADAN"),
    "a card": (f"paid with {CARD} today", CARD),
    "a card without gaps": ("5500005555555559", "5500005555555559"),
    "an option": ("mysql --password swordfish -u ada", "swordfish"),
    "a longer option": ("cmd --db-password Swordfish", "Swordfish"),
    "a word after passwd": ("passwd swordfish refused", "swordfish"),
    "a sentence": ("PASSWORD is 'X y'", "X y"),
    "a sentence without quotes": ("the password was swordfish, sadly", "swordfish"),
    "a password after a blank": ("bad password hunter2 for ada", "hunter2"),
    "a quoted token": ("unknown token 'swordfish'", "swordfish"),
    "a session": ("{'session_id': 'swordfish'}", "swordfish"),
    "a session in a cookie": ("connect.sid=swordfish; lang=en", "swordfish"),
    "a PIN": ("pin: 4711, otp=482911", "482911"),
    "a social security number": ('{"ssn": "078-05-1120"}', "078-05-1120"),
    "an IBAN": ("to DE89 3704 0044 0532 0130 00 now", "3704 0044 0532"),
}
PLAIN = [
    "job 4111111111111112 is done",
    "at 1794746639955867 µs",
    "max_tokens=512 tokens: 7",
    "http://127.0.0.1:8321/queues?after=7",
    "mail to ada@example.com",
    "see http://host:80/path and ada@example.com",
    "the token was bad",
    "DE00 3704 0044 0532 0130 00",
    "kind: resize, attempt: 3, queue=mail",
    'File "/srv/app/tokens.py", line 12, in check_password',
    "line 3, in check_password\n    raise BadPassword from None",
    "password is required",
    "the token was not found",
    "if token is None and secret is not None:",
    "password reset failed",
    "Password Mismatch",
    "token bucket of queue mail-fast is empty",
    "passwords are hashed",
    "tokenizer is BPE",
    "className: big",
    "footprint: 7 kB",
    "inside: 3, pinned: 4, spinning=5",
]


@pytest.mark.parametrize("sort", sorted(SECRETS))
def test_what_looks_like_a_secret_is_hidden_in_texts_payloads_and_keys(sort: str) -> None:
    text, secret = SECRETS[sort]
    assert secret not in DEFAULT.text(text)
    assert HIDDEN in DEFAULT.text(text)
    shown = str(DEFAULT.payload("k", {"a": [text], text: 1}))
    assert secret not in shown
    assert secret not in DEFAULT.text(f"({text})\n")


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_secret_stays(text: str) -> None:
    assert DEFAULT.text(text) == text


@pytest.mark.parametrize(
    "name",
    (
        "password Password PASSWD user_password db-password secret clientSecret api_key apiKey X-Api-Key token "
        "access_token authorization Cookie card cardNumber credit_card iban cvv CVC pin ssn private_key passphrase "
        "credentials otp session_id sessionId SESSIONID session PHPSESSID sid connect.sid accountSid csrf "
        "X-CSRF-Token xsrf csrfmiddlewaretoken otp_code userOTP totp user_pin pinCode ssn card_no cvv2 privateKey "
        "clientSecret aws_access_key_id secretKey master_key smtp_pass basic_auth jwt security_code"
    ).split(),
)
@pytest.mark.parametrize("value", ["hush", 1234, ["hush"], {"deep": "hush"}, True])
def test_values_under_telling_names_are_hidden_whatever_they_are(name: str, value: Any) -> None:
    assert DEFAULT.payload("k", {"a": {name: value}}) == {"a": {name: HIDDEN}}


@pytest.mark.parametrize(
    "name",
    (
        "user key keys tokens max_tokens pinned cardinal passed author company expand className footprint side "
        "sessions session_count pass_count spinning"
    ).split(),
)
def test_values_under_other_names_are_shown(name: str) -> None:
    assert DEFAULT.payload("k", {name: "hush"}) == {name: "hush"}


def test_a_kind_may_have_rules_of_its_own() -> None:
    rule = Redaction(
        names=("passport*",), kinds={"charge": ("customer.email", "items.price"), "hr.*": ("*",), "*": ("ip",)}
    )
    payload = {
        "customer": {"email": "a@b", "name": "Ada"},
        "items": [{"price": 5, "n": 1}],
        "ip": "::1",
        "passport_no": "X1",
    }
    assert rule.payload("charge", payload) == {
        "customer": {"email": HIDDEN, "name": "Ada"},
        "items": [{"price": HIDDEN, "n": 1}],
        "ip": HIDDEN,
        "passport_no": HIDDEN,
    }
    assert rule.payload("hr.hire", payload) == HIDDEN
    assert rule.payload("other", payload)["customer"]["email"] == "a@b"
    with pytest.raises(Invalid):
        Redaction(kinds={"a": ("",)})


def test_secrets_of_a_payload_are_found_in_an_errors_text() -> None:
    payload = {"password": "swordfish", "note": "swordfish is fine", "pin": 1234, "list": [{"token": "abcdefgh"}]}
    known = DEFAULT.secrets("k", payload)
    assert known == {"swordfish", "abcdefgh"}
    assert DEFAULT.text("KeyError: swordfish of abcdefgh", known) == "KeyError: *** of ***"


def test_a_secret_is_hidden_wherever_else_it_stands_in_its_payload() -> None:
    payload = {"session_id": "swordfish", "pin": 481516, "note": "with swordfish", "swordfish": 1, "n": [481516, 7]}
    assert DEFAULT.payload("k", payload) == {
        "session_id": HIDDEN, "pin": HIDDEN, "note": f"with {HIDDEN}", HIDDEN: 1, "n": [HIDDEN, 7],
    }  # fmt: skip


@pytest.mark.parametrize(
    "secret", ['it\'s "quoted"', "line\nbreak", "back\\slash", "größer als", "a b&c/d", "x\u2028tail"]
)
def test_a_secret_is_found_as_python_json_and_urls_write_it(secret: str) -> None:
    known = DEFAULT.secrets("k", {"secret": secret})
    for text in (secret, repr(secret), ascii(secret), json.dumps(secret), msgspec.json.encode(secret).decode(),
                 quote(secret, safe="")):  # fmt: skip
        assert DEFAULT.text(f"<{text}>", known).strip("<>\"'") == HIDDEN, text


def test_the_credentials_of_a_header_are_secret_by_themselves() -> None:
    known = DEFAULT.secrets("k", {"Authorization": "Bearer swordfish", "Cookie": "lang=en; sid=herrings"})
    assert DEFAULT.text("swordfish and herrings", known) == "*** and ***"


@pytest.mark.parametrize("after", [0, 1, 5, 7, 30])
def test_no_part_of_a_known_secret_is_left_at_the_cut(after: int) -> None:
    secret = "swordfish in the deep blue sea"
    text = f"{secret * 5}{'y' * after}"
    shown = DEFAULT.text(text, DEFAULT.secrets("k", {"secret": secret}), 40)
    assert set(shown) <= set("*y"), shown


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@given(JSON)
def test_any_payload_can_be_redacted_and_redacting_twice_changes_nothing(payload: Any) -> None:
    once = DEFAULT.payload("k", payload)
    assert DEFAULT.payload("k", once) == once
    DEFAULT.secrets("k", payload)


@pytest.mark.parametrize(
    "evil",
    ["password=" * 30_000, "://a:" * 50_000, "4" * 250_000, "4 " * 125_000, "eyJa" * 60_000, "DE89 " * 50_000,
     "-----BEGIN PRIVATE KEY-----" * 9_000, "bearer " * 30_000, "a" * 250_000, "password is " * 20_000,
     "--" * 100_000 + "token x", "secret '" * 30_000, "passwd " * 30_000, '"token":"' * 25_000],
)  # fmt: skip
def test_no_text_makes_it_slow(evil: str) -> None:
    began = perf_counter()
    DEFAULT.text(evil)
    assert perf_counter() - began < 5


def test_rules_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rules() is DEFAULT
    path = tmp_path / "rules.json"
    path.write_text('{"names": ["passport"], "kinds": {"charge": ["email"]}}')
    monkeypatch.setenv(VARIABLE, str(path))
    assert rules().payload("charge", {"email": "a@b", "passport": 1}) == {"email": HIDDEN, "passport": HIDDEN}
    monkeypatch.setenv(VARIABLE, str(tmp_path / "other.json"))
    with pytest.raises(Invalid):
        rules()
    (tmp_path / "bad.json").write_text('{"nmaes": []}')
    monkeypatch.setenv(VARIABLE, str(tmp_path / "bad.json"))
    with pytest.raises(Invalid):
        rules()


class KeptRecords(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


def test_logs_hold_no_secrets_neither_in_words_nor_in_traces() -> None:
    handler, logger = KeptRecords(), logging.getLogger("forebay.test_redaction")
    handler.addFilter(SecretFilter(DEFAULT))
    logger.addHandler(handler)
    try:
        logger.warning("cannot open %s: %d", "postgresql://ada:swordfish@db/jobs", 7)
        try:
            raise ValueError("password=swordfish")
        except ValueError:
            logger.exception("it failed with %s", {"token": "swordfish"})
        logger.warning("plain %s words", "and")
        logger.warning("bad %d", "format")
    finally:
        logger.removeHandler(handler)
    whole = "\n".join(handler.lines)
    assert "swordfish" not in whole
    assert "Traceback" in whole
    assert "plain and words" in whole


def test_the_filter_is_put_on_every_handler_once() -> None:
    handler, logger = KeptRecords(), logging.getLogger("forebay.test_guard")
    logger.addHandler(handler)
    try:
        for _ in range(2):
            install_secret_filter()
        assert [type(each) for each in handler.filters] == [SecretFilter]
    finally:
        logger.removeHandler(handler)
        for each in list(logging.lastResort.filters if logging.lastResort else ()):
            logging.lastResort.removeFilter(each)  # type: ignore[union-attr]
