"""The reference model and the model-based test.

jobs, gates, claims, dead_letters, intake, logs   the parts of the model, one rule book each
model       `Model`: the parts together, verb by verb
lockstep    `Lockstep`: a store and the model side by side, every answer compared
machine     `StoreMachine`: random histories for `Lockstep`, by Hypothesis
log_rules   its rules for logs;  strategies: queues and arguments of all rules
"""
