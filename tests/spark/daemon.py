"""Spark's daemon of Python workers with all that a worker imports already there: what is forked from it starts at once.

A task that fails, or that comes a minute after the last one, gets a new worker, and each of them would spend half a
second of CPU on imports. In all else it is the daemon that Spark brings, which the other processes of the tests use.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy comes: a process with threads should not fork

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import forebay.spark.source  # noqa: F401

if __name__ == "__main__":
    manager()
