"""What of a payload or a text may be shown: rules that find secrets by the names they have and by the way they look.

`Redaction.payload` hides values under telling names (password, token, card …) and what looks like a secret anywhere:
API keys, JWTs, private keys, card numbers that pass their check digit, IBANs likewise, passwords in URLs. Rules of a
kind hide more: `{"kinds": {"charge": ["customer.email"], "hr.*": ["*"]}}`, paths with dots, `*` for everything.

Rules find what is written like a secret. A secret that looks like a word, under a name that says nothing, is shown:
give its kind a rule, or encrypt the payload.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from forebay.core.errors import Invalid
from forebay.core.payload import Json

HIDDEN: Final = "***"
KNOWN_LENGTH: Final = 5
"""Shorter secrets of a payload are not looked for in texts: they would be found everywhere."""

_REMEMBERED: Final = 1_000
_REMEMBERED_LENGTH: Final = 8_000
_SHORTEST: Final = 12
"""Nothing shorter looks like a secret, unless it says `name=…` or `name: …`."""

_IN_NAME: Final = (
    "password passwd passphrase passcode pwd secret token authorization apikey accesskey privatekey credential cookie "
    "cardnumber creditcard debitcard iban cvv cvc ssn socialsecurity bearer signingkey encryptionkey otp"
).split()
_WHOLE_NAME: Final = frozenset("card pan pin auth pass".split())
_COUNTS: Final = re.compile(r"tokens$")
_SIGNS: Final = re.compile(r"[^a-z0-9]+")

_NAMED: Final = re.compile(
    r"((?:passw(?:or)?d|passphrase|pwd|secret|token(?!s\b)|api[_-]?key|access[_-]?key|private[_-]?key|credential"
    r"|authorization|cookie|iban|cvv|cvc)[\w.-]{0,40}\\?[\"']?\s{0,3}(?:=>|[=:])\s{0,3})"
    r"(?:(?:bearer|basic)\s+)?(?:\[[^\]]*\]?|\{[^}]*\}?|\\?\"[^\"]*\"?|'[^']*'?|[^\s,;&)}\]\"']+)"
)
_IN_NAMED: Final = "passw passphrase pwd secret token key credential authorization cookie iban cvv cvc".split()
"""One of these is in every text that `_NAMED` finds anything in: they are much cheaper to look for."""

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


_harmless: set[str] = set()
"""Texts in which there was nothing to hide: what fails, fails with the same words again and again."""


class Redaction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules: `names` are further names of fields, with `*`; `kinds` gives paths by kind of job, with `*`."""

    names: tuple[str, ...] = ()
    kinds: dict[str, tuple[str, ...]] = {}

    def __post_init__(self) -> None:
        if any(not name for name in self.names) or any(not path for paths in self.kinds.values() for path in paths):
            raise Invalid("redaction", "a name or a path is empty", 'write "passport" or "customer.email"')

    def payload(self, kind: str, value: Json) -> Json:
        """The value without its secrets; what is hidden is `***`."""
        paths = self._paths(kind)
        return HIDDEN if "*" in paths else self._shown(value, tuple(path.split(".") for path in paths))

    def text(self, text: str, known: Iterable[str] = ()) -> str:
        """The text without what looks like a secret, nor the secrets that are known."""
        for secret in sorted(known, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        if text in _harmless:
            return text
        shown = _text(text)
        if shown == text and len(text) <= _REMEMBERED_LENGTH:
            if len(_harmless) >= _REMEMBERED:
                _harmless.clear()
            _harmless.add(text)
        return shown

    def secrets(self, kind: str, value: Json) -> set[str]:
        """The strings that `payload` would hide, for looking them up in an error's text."""
        found: set[str] = set()
        paths = self._paths(kind)
        if "*" in paths:
            _gather(value, found)
        else:
            self._hidden(value, tuple(path.split(".") for path in paths), found)
        return {text for text in found if len(text) >= KNOWN_LENGTH}

    def is_secret(self, name: str) -> bool:
        """Whether a field of this name is hidden."""
        return _tells(name) or any(_fits(name, pattern) for pattern in self.names)

    def _paths(self, kind: str) -> list[str]:
        return [path for pattern, paths in self.kinds.items() if _fits(kind, pattern) for path in paths]

    def _shown(self, value: Json, paths: tuple[list[str], ...]) -> Json:
        if isinstance(value, dict):
            return {_shown_name(name): self._field(name, item, paths) for name, item in value.items()}
        if isinstance(value, list):
            return [self._shown(item, paths) for item in value]
        if isinstance(value, str):
            return self.text(value)
        if type(value) is int and 10**12 <= value < 10**19 and self.text(str(value)) == HIDDEN:
            return HIDDEN
        return value

    def _field(self, name: str, item: Json, paths: tuple[list[str], ...]) -> Json:
        below = _below(name, paths)
        if not all(below) or (self.is_secret(name) and item is not None):
            return HIDDEN
        return self._shown(item, below)

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
    if len(text) < _SHORTEST and not says:
        return text
    for prefix in _PREFIXES:
        if prefix in text:
            text = _SHAPES.sub(HIDDEN, text)
            break
    small = text.lower()
    if says and "://" in text:
        text = _IN_URL.sub(rf"\1{HIDDEN}@", text)
    if says and any(part in small for part in _IN_NAMED):
        text = _hidden_after(_NAMED, text)
    if "bearer" in small or "basic" in small:
        text = _hidden_after(_SCHEME, text)
    if _DIGITS.search(text):
        if _LONG_NUMBER.search(text):
            text = _CARD.sub(lambda found: HIDDEN if passes_luhn(found[0]) else found[0], text)
        text = _IBAN.sub(lambda found: HIDDEN if passes_mod97(found[0]) else found[0], text)
    return text


def _below(name: str, paths: tuple[list[str], ...]) -> tuple[list[str], ...]:
    """What is left of the paths below a field of this name; an empty one says that it is hidden."""
    return tuple(path[1:] for path in paths if _fits(name, path[0])) if paths else paths


def _hidden_after(pattern: re.Pattern[str], text: str) -> str:
    """What follows the first group of each match is hidden, in whatever case the text is written.

    The pattern is of small letters: without a flag for cases it is forty times as fast, and a trace is long.
    """
    small = text.lower()
    if len(small) != len(text):
        small = "".join(sign.lower() if len(sign.lower()) == 1 else sign for sign in text)
    parts, at = [], 0
    for found in pattern.finditer(small):
        parts += [text[at : found.end(1)], HIDDEN]
        at = found.end()
    return "".join([*parts, text[at:]])


@lru_cache(maxsize=4_096)
def _tells(name: str) -> bool:
    """Whether a field of this name holds a secret, by the built-in names."""
    plain = _SIGNS.sub("", name.lower())
    return plain in _WHOLE_NAME or (any(part in plain for part in _IN_NAME) and not _COUNTS.search(plain))


@lru_cache(maxsize=4_096)
def _shown_name(name: str) -> str:
    return DEFAULT.text(name)


@lru_cache(maxsize=1_024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)


def _fits(name: str, pattern: str) -> bool:
    return name == pattern or ("*" in pattern and _pattern(pattern).fullmatch(name) is not None)


def _gather(value: Any, found: set[str]) -> None:
    """All scalars of a value that is hidden as a whole."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _gather(item, found)
    elif value is not None and not isinstance(value, bool):
        found.add(str(value))


def passes_luhn(text: str) -> bool:
    """The check digit of card numbers."""
    digits = [int(sign) for sign in reversed(text) if sign.isdigit()]
    doubled = [digit if place % 2 == 0 else digit * 2 - 9 * (digit > 4) for place, digit in enumerate(digits)]
    return sum(doubled) % 10 == 0


def passes_mod97(text: str) -> bool:
    """The check digits of IBANs."""
    plain = text.replace(" ", "")
    return int("".join(str(int(sign, 36)) for sign in plain[4:] + plain[:4])) % 97 == 1


DEFAULT: Final = Redaction()
