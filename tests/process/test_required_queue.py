# ruff: noqa: F841, PT009
# mypy: ignore-errors
"""The four unit tests that the requirements print for the in-process queue (S0.11), word for word.

Only the import of `JobQueue` is ours; style and types are those of the requirement, so the linters skip it.
"""

import time
import unittest

from forebay import JobQueue


class TestJobQueue(unittest.TestCase):
    def test_basic_enqueue_ack(self):
        q = JobQueue()
        jid = q.enqueue("hello")
        job = q.dequeue()
        self.assertEqual(job.job_id, jid)
        self.assertTrue(q.ack(jid))
        self.assertIsNone(q.dequeue())

    def test_idempotency_dedup(self):
        q = JobQueue()
        a = q.enqueue("x", idempotency_key="k1")
        b = q.enqueue("x", idempotency_key="k1")
        self.assertEqual(a, b)
        self.assertEqual(q.stats()["visible"], 1)

    def test_visibility_timeout_redelivery(self):
        q = JobQueue(default_visibility_timeout=0.1)
        jid = q.enqueue("x")
        job1 = q.dequeue()
        time.sleep(0.15)
        job2 = q.dequeue()
        self.assertEqual(job1.job_id, job2.job_id)
        self.assertEqual(job2.delivery_count, 2)
        q.ack(job2.job_id)

    def test_nack_requeue(self):
        q = JobQueue()
        jid = q.enqueue("x")
        job = q.dequeue()
        q.nack(jid)
        job2 = q.dequeue()
        self.assertEqual(job.job_id, job2.job_id)
        self.assertEqual(job2.delivery_count, 2)
