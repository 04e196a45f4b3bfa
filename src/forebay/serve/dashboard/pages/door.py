"""In and out: logging in with a key or a one-time token, logging out, and the files that pages are made with."""

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from forebay.serve.actor import Role
from forebay.serve.dashboard.pages.route import back, pages
from forebay.serve.dashboard.render import STATIC, Sheet, link, still
from forebay.serve.problems import absent
from forebay.serve.security.sessions import check_origin, form_of, log_in, log_out, seat, session_of

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
        raise absent(name)
    content, media_type = STATIC[name]
    return Response(content, media_type=media_type, headers={"Cache-Control": "public, max-age=604800, immutable"})


@router.get("/ui/login")
async def login_form(request: Request, token: str = "") -> Response:
    """A one-time token opens a session at once; a key is never taken from an address."""
    if token and not token.startswith("fb_"):
        response = back(_HOME)
        if await log_in(request, response, token):
            return response
        return still(request, None, Sheet("login.html", "Log in", {"wrong": "That token is used, or too old."}))
    if session_of(request) is not None:
        return back(_HOME)
    return still(request, None, Sheet("login.html", "Log in", {"wrong": ""}))


@router.post("/ui/login")
async def login(request: Request) -> Response:
    check_origin(request)
    form = await form_of(request)
    response = back(_HOME)
    if await log_in(request, response, form.get("key", "")):
        return response
    sheet = Sheet("login.html", "Log in", {"wrong": "That key is unknown, revoked or expired."}, status=401)
    return still(request, None, sheet)


async def nowhere(rest: str) -> Response:
    raise absent(f"page {rest}")


@router.post("/ui/logout", dependencies=[seat(*Role)])
async def logout(request: Request) -> Response:
    response = back(link("login"))
    log_out(request, response)
    return response
