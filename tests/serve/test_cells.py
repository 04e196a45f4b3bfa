"""One server over several cells: the API and the dashboard show jobs of all of them, without a ledger of the whole."""

from pathlib import Path

from forebay.core.instant import minutes
from forebay.core.job import Draft
from forebay.core.outcome import DeadLetter, Failure
from forebay.serve.actor import Role
from forebay.store.cells.ids import cell_of
from forebay.store.protocol import Want
from tests.serve.site import Serving
from tests.serve.visitor import visitor
from tests.stores import openers


def test_the_pages_and_the_api_show_jobs_of_all_cells(tmp_path: Path, serve_on: Serving) -> None:
    store = openers.cells(2, tmp_path)(None)
    queues = ["default", "mail", "media", "orders", "reports"]
    ids = [receipt.id for receipt in store.enqueue([Draft("work", queue=queue) for queue in queues])]
    assert {cell_of(job_id) for job_id in ids} == {0, 1}
    dead = store.claim([Want(queue, 1) for queue in queues[:2]], "w", minutes(5))
    store.settle([(lease, DeadLetter(Failure("Boom", "it broke"))) for lease in dead])
    ended = {lease.job.id for lease in dead}
    site = serve_on(store)
    with site.client(Role.ADMIN) as client:
        for job_id in ids:
            assert client.get(f"/jobs/{job_id}").json()["id"] == job_id
        metrics = client.get("/metrics").text
        assert all(f'queue="{queue}"' in metrics for queue in queues)
        for cell in ("c0", "c1"):
            jobs = sum(cell_of(job_id) == int(cell[1]) and job_id not in ended for job_id in ids)
            assert f'forebay_cell_up{{cell="{cell}"}} 1' in metrics
            assert f'forebay_cell_jobs{{cell="{cell}",state="ready"}} {jobs}' in metrics
        assert client.get("/ready").json()["status"] == "ready"
    with visitor(site, Role.ADMIN) as admin:
        for page in ("/ui/", "/ui/jobs", "/ui/dead", "/ui/queues/mail", *(f"/ui/jobs/{job_id}" for job_id in ids)):
            assert admin.client.get(page).status_code == 200, page
    store.close()
