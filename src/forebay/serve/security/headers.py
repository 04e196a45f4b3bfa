"""Security headers on every response, pages and API alike.

No inline script or style runs, nothing is framed, nothing is loaded from another origin, nothing is cached unless the
route says so. The referrer policy is `same-origin` rather than `no-referrer`, because with the latter browsers omit the
`Origin` of a form, which the CSRF check needs.
"""

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_ALWAYS: Final = [
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_NO_STORE: Final = (b"cache-control", b"no-store")
_HSTS: Final = (b"strict-transport-security", b"max-age=31536000")


def security_headers(scheme: str) -> list[tuple[bytes, bytes]]:
    """The headers of a response that sets no caching of its own."""
    return [*_ALWAYS, *([_HSTS] if scheme == "https" else []), _NO_STORE]


class SecurityHeadersMiddleware:
    """ASGI: adds the headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        extra = [*_ALWAYS, _HSTS] if scope["scheme"] == "https" else _ALWAYS

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = list(message.get("headers", ()))
                cached = any(name.lower() == b"cache-control" for name, _ in own)
                message = {**message, "headers": [*own, *extra] if cached else [*own, *extra, _NO_STORE]}
            await send(message)

        await self._app(scope, receive, with_headers)
