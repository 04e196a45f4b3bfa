"""The worker.

worker, supervisor, options, app       a process and its supervision
claimer, pool, settler                 the path of a job: claim, run, settle
loop, threads, isolate, quarantine     where handlers run; run and context are one run
heartbeat, reaper, recovery, ticker    roles that maintain leases, expired jobs, dead processes and schedules
handler, signature, results            a registered function and its JSON encoding
log_readers                            consumers of retained logs
"""
