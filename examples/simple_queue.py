"""A producer, two good consumers, one that crashes, and a monitor: the smallest picture of at-least-once delivery.

Three messages go in. One consumer takes a message and never acknowledges it; when its visibility timeout has passed,
a good consumer gets it again. At the end nothing is left, and the program says so with its exit code.

    python examples/simple_queue.py [--scale 0.1]      scale 1 takes about ten seconds
"""

import argparse
import sys
import threading
import time

from forebay import JobQueue


def producer(queue: JobQueue) -> None:
    for number in (1, 2, 3):
        queue.enqueue(f"message {number}")


def good_consumer(queue: JobQueue, name: str, scale: float) -> None:
    while job := queue.receive(timeout=5.0 * scale):
        print(f"{name} got {job.payload!r}, delivery {job.delivery_count}")
        time.sleep(1.0 * scale)
        queue.ack(job.job_id)
    print(f"{name} got nothing more and goes home")


def bad_consumer(queue: JobQueue, name: str, scale: float) -> None:
    job = queue.receive(timeout=5.0 * scale)
    print(f"{name} took {job.payload!r} and crashed" if job else f"{name} got nothing")


def monitor(queue: JobQueue, scale: float, stop: threading.Event) -> None:
    while not stop.wait(1.0 * scale):
        print(f"  stats: {queue.stats()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="how fast time passes: 0.1 is ten times as fast")
    scale = parser.parse_args().scale
    queue = JobQueue(default_visibility_timeout=3.0 * scale)
    stop = threading.Event()
    watcher = threading.Thread(target=monitor, args=(queue, scale, stop))
    actors = [
        threading.Thread(target=producer, args=(queue,)),
        threading.Thread(target=bad_consumer, args=(queue, "bad-1", scale)),
        threading.Thread(target=good_consumer, args=(queue, "good-1", scale)),
        threading.Thread(target=good_consumer, args=(queue, "good-2", scale)),
    ]
    for actor in (*actors, watcher):
        actor.start()
    for actor in actors:
        actor.join()
    stop.set()
    watcher.join()
    left = queue.stats()
    print(f"in the end: {left}; deliveries a message took: {queue.deliveries()}")
    return 0 if left["visible"] == left["in_flight"] == left["waiting"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
