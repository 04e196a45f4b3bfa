"""Redaction: rules that find secrets in payloads and texts by name, by form and by value.

By name: values under sensitive names (password, token, session_id, card …). By form: API keys, JWTs, private keys, card
numbers and IBANs with valid check digits, passwords in URLs, `--password X`, `PASSWORD is 'X'`. By value: a string of
`MIN_KNOWN_LENGTH` characters or more under a sensitive name is hidden wherever else it occurs, in the payload and in
every text about the job. Rules for a kind hide more:
`{"kinds": {"charge": ["customer.email"], "hr.*": ["*"]}}`, paths with dots, `*` for everything.

A secret that looks like a word, under a neutral name, is shown: add a rule for its kind, or encrypt the payload.
"""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.payload import Json

HIDDEN: Final = "***"
MIN_KNOWN_LENGTH: Final = 6
"""Shorter secrets of a payload are not searched for in texts: they would match everywhere."""

_MAX_CACHED: Final = 1_000
_CACHED_LENGTH: Final = 8_000
_SHORTEST: Final = 12
"""Nothing shorter looks like a secret, unless a name precedes it: `name=…`, `name: …`, `name …`."""

_IN_NAME: Final = (
    "password passwd passphrase passcode pwd secret token authorization apikey accesskey privatekey signingkey "
    "encryptionkey masterkey sshkey sessionkey sessionid sessid csrf xsrf credential cookie bearer cardnumber "
    "creditcard debitcard cvv cvc socialsecurity securitycode verificationcode authcode accesscode recoverycode "
    "backupcode"
).split()
_WORDS_IN_NAME: Final = frozenset("card pin otp totp sid ssn iban csc mfa jwt".split())
_LAST_WORD: Final = frozenset("auth pan pass session".split())
_COUNTS: Final = re.compile(r"tokens$")
_SIGNS: Final = re.compile(r"[^a-z0-9]+")
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_SECRET_NAME: Final = (
    r"(?:passw(?:or)?d|passphrase|passcode|pwd|secret|token(?!s\b)"
    r"|(?:api|access|private|signing|encryption|master|session)[_-]?key|sess(?:ion)?[_-]?id|csrf|xsrf|credential"
    r"|authorization|cookie|cardnumber|cvv|cvc"
    r"|(?<![a-z0-9])(?:t?otp|sid|pin|pan|card|ssn|iban|auth|pass)(?![a-z0-9]))"
)
_NAMED: Final = re.compile(
    rf"({_SECRET_NAME}[\w.-]{{0,40}}\\?[\"']?\s{{0,3}}(?:=>|[=:])\s{{0,3}})"
    r"(?:(?:bearer|basic)\s+)?(?:\[[^\]]*\]?|\{[^}]*\}?|\\?\"[^\"]*\"?|'[^']*'?|[^\s,;&)}\]\"']+)"
)
_SPOKEN: Final = re.compile(
    rf"({_SECRET_NAME}(?:[_-][\w-]{{0,40}})?\\?[\"']?[ \t]{{1,3}}(?:((?:is|was)[ \t]{{1,3}}))?)"
    r"(?=(\\?\"[^\"\n]{0,200}\"?|'[^'\n]{0,200}'?|[^\s,;\"'`]+))"
)
"""A secret after its name and a blank: `--password X`, `passwd X`, `PASSWORD is 'X'`."""

_IN_NAMED: Final = (
    "pass pwd secret token key sess csrf xsrf credential auth cookie card cvv cvc otp sid pin pan ssn iban".split()
)
"""Every text that `_NAMED` or `_SPOKEN` matches contains one of these; searching for them first is much cheaper."""

_NO_PROSE: Final = ("passwd", "pwd")
"""Names that do not occur in prose: the next word is the secret."""

_AFTER_NAME: Final = frozenset(
    "a absent already an and are bad being cannot changed denied different disabled empty enabled encrypted expired "
    "false for from given hashed here if in incorrect invalid is long longer malformed mandatory missing must needed "
    "neither never no none not null of only or optional present refused rejected required revoked set short should "
    "stale the there to too true undefined unknown unset unsupported used was weak wrong".split()
)
"""Words that follow such a name in prose, and are not secrets."""

_IN_URL: Final = re.compile(r"(://[^\s/:@\"']{0,128}:)(?!\d{1,5}(?:[/?#\s\"']|$))(\S{1,128})@(?=[\w.\[-])")
_SCHEME: Final = re.compile(r"\b((?:bearer|basic)\s+)[a-z0-9._~+/=-]{12,}")
_PREFIXES: Final = (
    "fb_ eyJ sk_live_ sk_test_ pk_live_ pk_test_ rk_live_ rk_test_ sk- gho_ ghp_ ghu_ ghs_ ghr_ github_pat_ glpat- "
    "xox AKIA ASIA AIza -----BEGIN"
).split()
_SHAPES: Final = re.compile(
    r"fb_[0-9a-f]{12}_[A-Za-z0-9_-]{32}"
    r"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*)?"
    r"|[spr]k_(?:live|test)_[A-Za-z0-9]{10,}|\bsk-[A-Za-z0-9_-]{20,}"
    r"|gh[opusr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,}|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[0-9A-Za-z_-]{35}"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
)
_DIGITS: Final = re.compile(r"\d[ -]?\d")
_LONG_NUMBER: Final = re.compile(r"\d(?:[ -]?\d){7}")
_CARD: Final = re.compile(r"[2-6](?<![\w.][2-6])(?:[ -]?\d){12,18}(?![\w.])")
_IBAN: Final = re.compile(r"[A-Z](?<!\w[A-Z])[A-Z]\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b")


_MASK: Final = "\0"
_MASKS: Final = re.compile("\0+")
_PIECE: Final = re.compile(r"(?:(?i:^bearer|^basic) +|=)([^\s;,&=]+)")
"""What is secret in a header: `Bearer X`, `sid=X; lang=en`."""

_JOINTS: Final = re.compile("[-_./]")
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_URL_SAFE: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")

_harmless: set[str] = set()
"""Cached texts without secrets: failing jobs repeat the same messages."""


class Redaction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules: `names` are further names of fields, with `*`; `kinds` gives paths by kind of job, with `*`."""

    names: tuple[str, ...] = ()
    kinds: dict[str, tuple[str, ...]] = {}

    def __post_init__(self) -> None:
        if any(not name for name in self.names) or any(not path for paths in self.kinds.values() for path in paths):
            raise Invalid("redaction", "a name or a path is empty", 'write "passport" or "customer.email"')

    def payload(self, kind: str, value: Json, known: Collection[str] = ()) -> Json:
        """The value without its secrets and the known ones; each is replaced by `***`."""
        paths = self._paths(kind)
        if "*" in paths:
            return HIDDEN
        return self._shown(value, tuple(path.split(".") for path in paths), self.secrets(kind, value).union(known))

    def text(self, text: str, known: Collection[str] = (), length: int | None = None) -> str:
        """The text, or its last `length` characters, without known secrets and what looks like one.

        Known secrets are masked before the text is cut, so that no part of one remains at the cut.
        """
        if known:
            text = _masked(text, known, length)
        elif length is not None:
            text = text[-length:]
        if text in _harmless:
            return text
        shown = _text(text)
        if shown == text and len(text) <= _CACHED_LENGTH:
            if len(_harmless) >= _MAX_CACHED:
                _harmless.clear()
            _harmless.add(text)
        return shown

    def secrets(self, kind: str, value: Json) -> set[str]:
        """The strings that `payload` would hide, in all encodings in which they may occur in a text."""
        found: set[str] = set()
        paths = self._paths(kind)
        if "*" in paths:
            _gather(value, found)
        else:
            self._hidden(value, tuple(path.split(".") for path in paths), found)
        return {text for secret in found for text in _spellings(secret) if len(text) >= MIN_KNOWN_LENGTH}

    def is_secret(self, name: str) -> bool:
        """Whether a field of this name is hidden."""
        return _names_secret(name) or any(_matches(name, pattern) for pattern in self.names)

    def _paths(self, kind: str) -> list[str]:
        return [path for pattern, paths in self.kinds.items() if _matches(kind, pattern) for path in paths]

    def _shown(self, value: Json, paths: tuple[list[str], ...], known: Collection[str] = ()) -> Json:
        if isinstance(value, dict):
            return {
                self.text(name, known) if known else _shown_name(name): self._field(name, item, paths, known)
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [self._shown(item, paths, known) for item in value]
        if isinstance(value, str):
            return self.text(value, known)
        if known and type(value) in (int, float) and str(value) in known:
            return HIDDEN
        if type(value) is int and 10**12 <= value < 10**19 and self.text(str(value)) == HIDDEN:
            return HIDDEN
        return value

    def _field(self, name: str, item: Json, paths: tuple[list[str], ...], known: Collection[str]) -> Json:
        below = _below(name, paths)
        if not all(below) or (self.is_secret(name) and item is not None):
            return HIDDEN
        return self._shown(item, below, known)

    def _hidden(self, value: Json, paths: tuple[list[str], ...], found: set[str]) -> None:
        """The scalars that `_shown` would not show as they are."""
        if isinstance(value, dict):
            for name, item in value.items():
                below = _below(name, paths)
                if not all(below) or self.is_secret(name):
                    _gather(item, found)
                else:
                    self._hidden(item, below, found)
        elif isinstance(value, list):
            for item in value:
                self._hidden(item, paths, found)
        elif self._shown(value, ()) != value:
            found.add(str(value))


def _text(text: str) -> str:
    says = "=" in text or ":" in text
    if len(text) < _SHORTEST and not says and " " not in text:
        return text
    for prefix in _PREFIXES:
        if prefix in text:
            text = _SHAPES.sub(HIDDEN, text)
            break
    small = text.lower()
    if says and "://" in text:
        text = _IN_URL.sub(rf"\1{HIDDEN}@", text)
    if any(part in small for part in _IN_NAMED):
        if says:
            text = _hidden_after(_NAMED, text)
        text = _hidden_spoken(text)
    if "bearer" in small or "basic" in small:
        text = _hidden_after(_SCHEME, text)
    if _DIGITS.search(text):
        if _LONG_NUMBER.search(text):
            text = _CARD.sub(lambda found: HIDDEN if passes_luhn(found[0]) else found[0], text)
        text = _IBAN.sub(lambda found: HIDDEN if passes_mod97(found[0]) else found[0], text)
    return text


def _below(name: str, paths: tuple[list[str], ...]) -> tuple[list[str], ...]:
    """The rest of the paths below a field of this name; an empty path means that the field is hidden."""
    return tuple(path[1:] for path in paths if _matches(name, path[0])) if paths else paths


def _hidden_after(pattern: re.Pattern[str], text: str) -> str:
    """Hide what follows the first group of each match, regardless of case.

    The pattern is in lower case and matched against a lower-case copy: forty times as fast as IGNORECASE.
    """
    parts, at = [], 0
    for found in pattern.finditer(_small(text)):
        parts += [text[at : found.end(1)], HIDDEN]
        at = found.end()
    return "".join([*parts, text[at:]])


def _hidden_spoken(text: str) -> str:
    """Hide what `_SPOKEN` matches, unless it is the next word of a sentence."""
    parts, at = [], 0
    for found in _SPOKEN.finditer(_small(text)):
        begin, end = found.span(3)
        if begin >= at and _is_spoken(text, found):
            parts += [text[at:begin], HIDDEN]
            at = end
    return "".join([*parts, text[at:]])


def _is_spoken(text: str, found: re.Match[str]) -> bool:
    value = text[found.start(3) : found.end(3)]
    if value[0] in "\\\"'":
        return True
    word = value.strip(".:!?()[]{}<>")
    if not word or word.lower() in _AFTER_NAME:
        return False
    before = text[max(0, found.start() - 40) : found.start()]
    if before.rpartition(" ")[2].startswith("-"):
        return not word.startswith("-")
    if found[2] or any(name in found[1] for name in _NO_PROSE):
        return True
    letters = _JOINTS.sub("", word)
    plain = letters.isalpha() and (letters.islower() or letters.isupper() or letters.istitle())
    return len(word) >= MIN_KNOWN_LENGTH and not plain


def _small(text: str) -> str:
    """The text in lower case, with the same length."""
    small = text.lower()
    if len(small) == len(text):
        return small
    return "".join(sign.lower() if len(sign.lower()) == 1 else sign for sign in text)


def _masked(text: str, known: Collection[str], length: int | None) -> str:
    """The end of the text with known secrets hidden; a mask has the length of its secret until the text is cut."""
    ordered = sorted(known, key=len, reverse=True)
    if length is not None:
        text = text[-(length + len(ordered[0])) :]
    for secret in ordered:
        text = text.replace(secret, _MASK * len(secret))
    return _MASKS.sub(HIDDEN, text if length is None else text[-length:])


def _spellings(secret: str) -> Collection[str]:
    """A secret and its Python, JSON and URL encodings; for a header also the credentials alone."""
    if secret.isascii() and secret.isalnum():
        return (secret,)
    return {
        spelling
        for piece in (secret, *_PIECE.findall(secret))
        for spelling in (piece, repr(piece)[1:-1], ascii(piece)[1:-1], *_encoded(piece))
    }


def _encoded(text: str) -> tuple[str, str, str]:
    """The text encoded as JSON, as ASCII-only JSON, and for a URL."""
    clean = text.encode("utf-8", "replace")
    in_json = msgspec.json.encode(clean.decode()).decode()[1:-1]
    in_ascii = _NOT_ASCII.sub(lambda sign: re.sub("(....)", r"\\u\1", sign[0].encode("utf-16-be").hex()), in_json)
    in_url = "".join(chr(byte) if chr(byte) in _URL_SAFE else f"%{byte:02X}" for byte in clean)
    return in_json, in_ascii, in_url


@lru_cache(maxsize=4_096)
def _names_secret(name: str) -> bool:
    """Whether a field of this name holds a secret, by the built-in names."""
    plain = _SIGNS.sub("", name.lower())
    words = [word.lower() for word in _WORD.findall(name)]
    if not _WORDS_IN_NAME.isdisjoint([plain, *words]) or not _LAST_WORD.isdisjoint([plain, *words[-1:]]):
        return True
    return any(part in plain for part in _IN_NAME) and not _COUNTS.search(plain)


@lru_cache(maxsize=4_096)
def _shown_name(name: str) -> str:
    return DEFAULT.text(name)


@lru_cache(maxsize=1_024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or ("*" in pattern and _pattern(pattern).fullmatch(name) is not None)


def _gather(value: Any, found: set[str]) -> None:
    """Collect all scalars of a value that is hidden as a whole."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _gather(item, found)
    elif value is not None and not isinstance(value, bool):
        found.add(str(value))


def passes_luhn(text: str) -> bool:
    """Whether the check digit of a card number is valid."""
    digits = [int(sign) for sign in reversed(text) if sign.isdigit()]
    doubled = [digit if place % 2 == 0 else digit * 2 - 9 * (digit > 4) for place, digit in enumerate(digits)]
    return sum(doubled) % 10 == 0


def passes_mod97(text: str) -> bool:
    """Whether the check digits of an IBAN are valid."""
    plain = text.replace(" ", "")
    return int("".join(str(int(sign, 36)) for sign in plain[4:] + plain[:4])) % 97 == 1


DEFAULT: Final = Redaction()
