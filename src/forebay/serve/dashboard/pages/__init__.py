"""The routes of the dashboard."""

from forebay.serve.actor import Role
from forebay.serve.dashboard.pages import (
    admin,
    bulk_actions,
    dead,
    jobs,
    login,
    logs,
    overview,
    queues,
    schedules,
    workers,
)
from forebay.serve.dashboard.pages.routing import pages
from forebay.serve.security.sessions import require_session

router = pages()
for room in (login, overview, queues, jobs, dead, bulk_actions, schedules, workers, logs, admin):
    router.include_router(room.router)
router.add_api_route("/ui/{rest:path}", login.nowhere, dependencies=[require_session(*Role)])
