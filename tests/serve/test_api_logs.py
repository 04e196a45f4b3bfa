"""Groups of a log over HTTP: owning partitions, committing in an epoch, the progress of a group, reading from an
instant."""

from forebay.core.instant import to_datetime
from forebay.core.policy import Retained
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.store.protocol import Store
from tests.serve.site import Site
from tests.serve.test_api_jobs import problem


def test_members_share_the_partitions_and_commit_in_their_epoch(site: Site, store: Store) -> None:
    store.put_spec(QueueSpec(name="events", retention=Retained(2)))
    store.append("events", [b"%d" % number for number in range(6)])
    reader = site.client(Role.WORKER)
    own = {"group": "g", "member": "a", "lease_seconds": 60}
    owned = reader.post("/logs/events/own", json=own).json()
    assert [(one["partition"], one["epoch"], one["position"]) for one in owned["partitions"]] == [
        (0, 1, -1),
        (1, 1, -1),
    ]
    assert reader.post("/logs/events/own", json={**own, "member": "b"}).json()["partitions"] == []
    commit = "/logs/events/0/commit"
    assert reader.post(commit, json={"group": "g", "offset": 1, "epoch": 1}).json()["position"] == 1
    assert reader.post("/logs/events/disown", json={"group": "g", "member": "a"}).json() == {"freed": 2}
    response = problem(reader.post(commit, json={"group": "g", "offset": 2, "epoch": 1}), 409, "partition-lost")
    assert (response["partition"], response["epoch"]) == (0, 1)
    problem(reader.post(commit, json={"group": "g", "offset": 2, "epoch": 0}), 422, "invalid")
    groups = site.client(Role.VIEWER).get("/logs/events/groups").json()
    lines = [(one["group"], one["partition"], one["position"], one["lag"], one["member"]) for one in groups["groups"]]
    assert lines == [("g", 0, 1, 1, None), ("g", 1, -1, 3, None)]
    assert groups["next"] is None


def test_groups_come_page_by_page(site: Site, store: Store) -> None:
    store.put_spec(QueueSpec(name="events", retention=Retained()))
    for group in ("a", "b", "c"):
        store.commit("events", group, 0, -1)
    viewer = site.client(Role.VIEWER)
    first = viewer.get("/logs/events/groups?limit=2").json()
    assert ([one["group"] for one in first["groups"]], first["next"]) == (["a", "b"], "b")
    second = viewer.get(f"/logs/events/groups?limit=2&after={first['next']}").json()
    assert ([one["group"] for one in second["groups"]], second["next"]) == (["c"], None)
    problem(viewer.get("/logs/never/groups"), 404, "not-found")


def test_reading_begins_at_an_instant(site: Site, store: Store) -> None:
    store.put_spec(QueueSpec(name="events", retention=Retained()))
    store.append("events", [b"1"])
    (entry,) = store.append("events", [b"2"])
    client = site.client(Role.VIEWER)
    since = to_datetime(entry.at).isoformat().replace("+00:00", "Z")
    shown = client.get("/logs/events/0", params={"since": since}).json()
    assert shown["entries"][-1]["offset"] == 1
    later = client.get("/logs/events/0", params={"since": "2150-01-01T00:00:00Z"}).json()
    assert (later["entries"], later["next"]) == ([], 1)
