"""The routes of the dashboard, one file a page or two."""

from forebay.serve.actor import Role
from forebay.serve.dashboard.pages import admin, dead, door, jobs, logs, moves, overview, queues, schedules, workers
from forebay.serve.dashboard.pages.route import pages
from forebay.serve.security.sessions import seat

router = pages()
for room in (door, overview, queues, jobs, dead, moves, schedules, workers, logs, admin):
    router.include_router(room.router)
router.add_api_route("/ui/{rest:path}", door.nowhere, dependencies=[seat(*Role)])
