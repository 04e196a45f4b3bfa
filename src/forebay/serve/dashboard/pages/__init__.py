"""The routes of the dashboard."""

from forebay.serve.actor import Role
from forebay.serve.dashboard.pages import access, bulk_actions, dead, jobs, logs, overview, queues, schedules, workers
from forebay.serve.dashboard.pages.routing import pages
from forebay.serve.security.sessions import require_session

router = pages()
for module in (access, overview, queues, jobs, dead, bulk_actions, schedules, workers, logs):
    router.include_router(module.router)
router.add_api_route("/ui/{rest:path}", access.unknown_page, dependencies=[require_session(*Role)])
