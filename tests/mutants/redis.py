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
        "if #before > 0 and not take_over(q, owner, before) then",
        "if false then",
        _STREAMS,
    ),
    Mutant(
        "an entry that is not ours is believed, in Redis",
        f"{_LUA}/lib/readers.lua",
        "if not r or not is_unread(r) or r[MORE].flow ~= dues[i] or r[QUEUE] ~= q.name then",
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
        "if queue_of(queue).version ~= version then",
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
        "a class that is behind does not go first, in Redis",
        f"{_LUA}/lib/lanes.lua",
        "      turn = shifted(turn, floor(UNIT / (q.rule.weights[lane.cls] or q.rule.default)))\n",
        "",
        (*_CONFORMANCE, "redis-shares or redis-turns"),
    ),
    Mutant(
        "a settle gives no slots back, in Redis",
        f"{_LUA}/lib/settle.lua",
        "      give_back(r, n)\n",
        "",
        (*_CONFORMANCE, "redis-gates or redis-lanes"),
    ),
    Mutant(
        "a cheap job passes a dear one at its gate, in Redis",
        f"{_LUA}/lib/lanes.lua",
        "if not is_open(gate, cost) or is_later and not is_open(gate, cost_at(sub(place, 21))) then",
        "if not is_open(gate, cost) then",
        (*_CONFORMANCE, "redis-costs or redis-lanes"),
    ),
    Mutant(
        "room at a gate is seen by nothing that is parked there, in Redis",
        f"{_LUA}/lib/rooms.lua",
        "          wake(queue_of(queue), name)\n",
        "",
        (*_CONFORMANCE, "redis-lanes or redis-gates"),
    ),
    Mutant(
        "a running job of a line is passed by one that comes back, in Redis",
        f"{_LUA}/lib/lines.lua",
        "if was and was[STATE] == RUNNING then",
        "if false then",
        (*_CONFORMANCE, "redis-lines"),
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
