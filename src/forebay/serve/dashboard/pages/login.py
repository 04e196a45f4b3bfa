"""Login with a key or a one-time token, logout, and static files."""

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from forebay.serve.actor import Role
from forebay.serve.dashboard.pages.routing import back, pages
from forebay.serve.dashboard.render import STATIC, Page, link, render_without_store
from forebay.serve.problems import not_found
from forebay.serve.security.sessions import check_origin, form_of, log_in, log_out, require_session, session_of

router = pages()
_HOME = "/ui/"


@router.get("/")
async def root(token: str = "") -> Response:
    return RedirectResponse(link("login", token=token) if token else _HOME, 303)


@router.get("/ui")
async def without_slash() -> Response:
    return RedirectResponse(_HOME, 303)


@router.get("/ui/static/{name}")
async def static(name: str) -> Response:
    if name not in STATIC:
        raise not_found(name)
    content, media_type = STATIC[name]
    return Response(content, media_type=media_type, headers={"Cache-Control": "public, max-age=604800, immutable"})


@router.get("/ui/login")
async def login_form(request: Request, token: str = "") -> Response:
    """A one-time token opens a session at once; a key is never accepted in a URL."""
    if token and not token.startswith("fb_"):
        response = back(_HOME)
        if await log_in(request, response, token):
            return response
        return render_without_store(
            request, None, Page("login.html", "Log in", {"wrong": "That token is used, or too old."})
        )
    if session_of(request) is not None:
        return back(_HOME)
    return render_without_store(request, None, Page("login.html", "Log in", {"wrong": ""}))


@router.post("/ui/login")
async def login(request: Request) -> Response:
    check_origin(request)
    form = await form_of(request)
    response = back(_HOME)
    if await log_in(request, response, form.get("key", "")):
        return response
    sheet = Page("login.html", "Log in", {"wrong": "That key is unknown, revoked or expired."}, status=401)
    return render_without_store(request, None, sheet)


async def nowhere(rest: str) -> Response:
    raise not_found(f"page {rest}")


@router.post("/ui/logout", dependencies=[require_session(*Role)])
async def logout(request: Request) -> Response:
    response = back(link("login"))
    log_out(request, response)
    return response
