"""The guards of what a user meets first (logs, unknown kinds, start-up), and how each is broken."""

from tests.mutants.guards import Mutant

JOB_LOG = "src/forebay/work/job_log.py"


def tests(*words: str) -> tuple[str, ...]:
    return ("tests/unit/test_job_log.py", "-k", " or ".join(words))


JOB_LOG_MUTANTS = [
    Mutant(
        "a failure is silent",
        "src/forebay/work/pool.py",
        "                self._report(run, found[-1][1])\n",
        "",
        tests("each_failed_attempt"),
    ),
    Mutant(
        "a storm of failures fills the disk",
        JOB_LOG,
        "self._failures.admit((kind, why))",
        "True",
        tests("storm"),
    ),
    Mutant(
        "the text of a record that is left out is built",
        JOB_LOG,
        "not self._admitted(job.kind, failure.kind):\n            return\n",
        "not self._admitted(job.kind, failure.kind):\n            _failed(job, failure, None)\n            return\n",
        tests("left_out_is_not_built"),
    ),
    Mutant(
        "a log that fails costs a verdict",
        JOB_LOG,
        "    except Exception:\n        # An error",
        "    except ZeroDivisionError:\n        # An error",
        tests("costs_no_verdict"),
    ),
    Mutant(
        "a message ends its line",
        JOB_LOG,
        "{clean(why)}",
        "{why}",
        tests("control_characters"),
    ),
    Mutant(
        "what was left out is not counted",
        "src/forebay/work/job_log.py",
        "self._refused[key] = self._refused.get(key, 0) + 1",
        "pass",
        tests("storm"),
    ),
    Mutant(
        "fields of a record are not redacted",
        "src/forebay/work/log_setup.py",
        'rules().payload("", plain, () if job is None else job.secrets)',
        "plain",
        tests("json_hides_secrets"),
    ),
    Mutant(
        "a kind without a handler burns attempts",
        "src/forebay/work/pool.py",
        "decide(job, Unhandled(elsewhere, newer), _ANY_ROUTING, self._draw())",
        "(_PLAIN_ACK)",
        ("tests/unit/test_pool.py", "-k", "unknown_kind"),
    ),
    Mutant(
        "a kind that one worker handles is called unhandled",
        "src/forebay/core/presence.py",
        "if not any(worker.handles(*pair) for worker in workers)",
        "if True",
        ("tests/stores/test_conformance.py", "-k", "memory and what_a_worker_cannot_run and not journaled"),
    ),
    Mutant(
        "kinds without a handler are kept without a bound",
        "src/forebay/work/pool.py",
        "if len(self._unhandled) < MAX_UNHANDLED or (job.queue, job.kind) in self._unhandled:",
        "if True:",
        ("tests/unit/test_pool.py", "-k", "within_bounds"),
    ),
    Mutant(
        "a signal during start-up kills",
        "src/forebay/__main__.py",
        "            signal.signal(number, _leave)\n",
        "            pass\n",
        ("tests/process/test_startup.py", "-k", "as_soon_as"),
    ),
    Mutant(
        "a worker on a full disk ends like any other",
        "src/forebay/work/worker.py",
        "        return CANNOT_START\n    worker =",
        "        return 1\n    worker =",
        ("tests/process/test_startup.py", "-k", "starts_a_worker_again", "--timeout", "60"),
    ),
    Mutant(
        "dev names the default store",
        "src/forebay/cli/serve.py",
        "call.url if app is None else app.url",
        "call.url",
        ("tests/process/test_cli.py", "-k", "names_the_store"),
    ),
]
