"""A receiver with nothing to do sleeps: it costs no CPU, on the machine's own clock, and wakes when it should."""

import time
from threading import Thread

from forebay import JobQueue
from forebay.queue import Job

ASLEEP = 0.3


def cpu_and_wall(queue: JobQueue, timeout: float) -> tuple[Job | None, float, float]:
    cpu, wall = time.process_time(), time.monotonic()
    job = queue.receive(timeout=timeout)
    return job, time.process_time() - cpu, time.monotonic() - wall


def test_an_idle_receive_costs_no_cpu() -> None:
    job, cpu, wall = cpu_and_wall(JobQueue(), ASLEEP)
    assert job is None
    assert wall >= ASLEEP
    assert cpu < 0.05


def test_many_idle_receivers_cost_no_cpu() -> None:
    queue = JobQueue()
    receivers = [Thread(target=queue.receive, args=(ASLEEP,)) for _ in range(50)]
    for receiver in receivers:
        receiver.start()
    before = time.process_time()
    time.sleep(ASLEEP / 2)
    assert time.process_time() - before < 0.05
    for receiver in receivers:
        receiver.join(10)
        assert not receiver.is_alive()


def test_a_receiver_wakes_when_a_job_in_other_hands_expires() -> None:
    queue = JobQueue(default_visibility_timeout=ASLEEP)
    job_id = queue.enqueue("x")
    assert queue.dequeue() is not None
    job, cpu, wall = cpu_and_wall(queue, 10)
    assert job is not None
    assert (job.job_id, job.delivery_count) == (job_id, 2)
    assert ASLEEP / 2 < wall < 5
    assert cpu < 0.05
