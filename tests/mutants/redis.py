"""The guards of the Redis store, and how each is broken."""

from tests.mutants.guards import Mutant

_LUA = "src/forebay/store/redis/lua"
_STORE = "src/forebay/store/redis"
_CONFORMANCE = ("tests/stores/test_conformance.py", "-k")
_REDIS = ("tests/stores/test_redis.py",)
_STREAMS = ("tests/stores/test_redis_streams.py",)
_FAULTS = ("tests/process/test_redis_faults.py", "-k", "lost_reply or forgotten or memory")

REDIS_MUTANTS = [
    Mutant(
        "a schedule that is put again drops its pending tick, in Redis",
        f"{_LUA}/put_schedule.lua",
        "    next_at = known[2]\n",
        "",
        (*_CONFORMANCE, "redis-schedules"),
    ),
    Mutant(
        "gates are listed however their names begin, in Redis",
        f"{_LUA}/gates.lua",
        "local last = prefix == '' and '+' or '(' .. prefix .. '\\255'",
        "local last = '+'",
        (*_CONFORMANCE, "redis-gate_pages"),
    ),
    Mutant(
        "a job taken back loses its rank, in Redis",
        f"{_LUA}/lib/settle.lua",
        "if group[8] then",
        "if group[8] and code ~= 'r' then",
        (*_CONFORMANCE, "redis-taking_back"),
    ),
    Mutant(
        "parked jobs get the slot of a job taken back, in Redis",
        f"{_LUA}/lib/tend.lua",
        "    if due and due <= now then\n",
        "    open_gates(limit)\n    if due and due <= now then\n",
        (*_CONFORMANCE, "redis-taking_back"),
    ),
    Mutant(
        "a settle without a fence, in Redis",
        f"{_LUA}/lib/settle.lua",
        "if r[STATE] == RUNNING and r[DELIVERY] == group[2] and not outlived then",
        "if r[STATE] == RUNNING and not outlived then",
        (*_CONFORMANCE, "redis-settling or redis-leases"),
    ),
    Mutant(
        "a plain ack without a fence, in Redis",
        f"{_LUA}/lib/settle.lua",
        "local held = r[STATE] == RUNNING and r[DELIVERY] == delivery",
        "local held = r[STATE] == RUNNING",
        (*_CONFORMANCE, "redis-settling or redis-leases"),
    ),
    Mutant(
        "an entry is acknowledged without a fence, in Redis",
        f"{_LUA}/lib/settle.lua",
        "local held = r[STATE] == RUNNING and r[DELIVERY] == delivery",
        "local held = r[STATE] == RUNNING",
        _STREAMS,
    ),
    Mutant(
        "XCLAIM is forgotten, in Redis",
        f"{_LUA}/lib/claims.lua",
        "if #before > 0 and not take_over(l, owner, before) then",
        "if false then",
        _STREAMS,
    ),
    Mutant(
        "an entry that is not ours is believed, in Redis",
        f"{_LUA}/lib/readers.lua",
        "if not r or not is_unread(r) or r[MORE].flow ~= dues[i] or r[QUEUE] ~= l.name then",
        "if false then",
        _STREAMS,
    ),
    Mutant(
        "an empty stream stays, in Redis",
        f"{_LUA}/lib/streams.lua",
        "if call('XLEN', key) == 0 then",
        "if false then",
        _STREAMS,
    ),
    Mutant(
        "a second client decides how a store delivers, in Redis",
        f"{_LUA}/lib/accept.lua",
        "if batch.delivery and batch.delivery ~= streams.mode then",
        "if false then",
        _STREAMS,
    ),
    Mutant(
        "a renewed lease is reaped, in Redis",
        f"{_LUA}/lib/settle.lua",
        "r[STATE] == RUNNING and r[UNTIL] > group[3]",
        "false",
        (*_CONFORMANCE, "redis-leases or redis-settling"),
    ),
    Mutant(
        "a repeated call is made again, in Redis",
        f"{_LUA}/lib/keys.lua",
        "return kept and decode(kept) or nil",
        "return nil",
        _FAULTS,
    ),
    Mutant(
        "a spec that has changed is relied on, in Redis",
        f"{_LUA}/lib/accept.lua",
        "if line(queue).version ~= version then",
        "if false then",
        _REDIS,
    ),
    Mutant(
        "an unsafe server is let in",
        f"{_STORE}/health.py",
        'elif durability == "always" and settings["appendfsync"] != "always":',
        'elif durability == "always" and settings["appendfsync"] == "no":',
        _REDIS,
    ),
    Mutant(
        "a server that evicts is let in",
        f"{_STORE}/health.py",
        'if settings["maxmemory-policy"] != "noeviction":',
        'if settings["maxmemory-policy"] == "allkeys-random":',
        _REDIS,
    ),
    Mutant(
        "a bucket that is empty stays known, in Redis",
        f"{_LUA}/lib/jobs.lua",
        "call('ZREM', P .. 'buckets', bucket)",
        "local _ = bucket",
        _REDIS,
    ),
    Mutant(
        "ranks are rounded, in Redis",
        f"{_LUA}/lib/jobs.lua",
        "return format('%010.0f%010.0f', high, low)",
        "return format('%020.0f', high * HALF + low)",
        _REDIS,
    ),
    Mutant(
        "a server that forgot its scripts is given up",
        f"{_STORE}/connect.py",
        '_ask(connection, ("SCRIPT", "LOAD", one.text))',
        "raise",
        _FAULTS,
    ),
    Mutant(
        "what lets jobs out needs memory",
        f"{_STORE}/scripts.py",
        'return "" if name in _ENTERING else " flags=allow-oom"',
        'return ""',
        _FAULTS,
    ),
    Mutant(
        "a flood takes every slot of a cap, in Redis",
        f"{_LUA}/lib/gates.lua",
        "local cls = share_at(more(r), g.name) and whose_turn(r[QUEUE], g)",
        "local cls = nil",
        (*_CONFORMANCE, "redis-turns"),
    ),
    Mutant(
        "who is ready keeps others from starting, in Redis",
        f"{_LUA}/lib/claims.lua",
        "if l.rule.default and not want[3] and call(",
        "if false and call(",
        (*_CONFORMANCE, "redis-turns"),
    ),
    Mutant(
        "redis: settings that change while a store is open are not noticed",
        "src/forebay/store/redis/health.py",
        "or monotonic() - self._checked_at >= _CHECK_EVERY",
        "",
        ("tests/stores/test_redis_settings.py", "-k", "truth and lru"),
    ),
    Mutant(
        "redis: a server that loses jobs is ready",
        "src/forebay/serve/metrics/readiness.py",
        '["unsafe-settings"] if self._store.capabilities.unsafe else []',
        "[]",
        ("tests/serve/test_health.py", "-k", "unsafe"),
    ),
]
