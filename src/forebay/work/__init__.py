"""The worker: one file per role.

claimer · pool (slots, threads, isolate) · settler · renewer · reaper · promoter · ticker · supervisor · worker
"""
