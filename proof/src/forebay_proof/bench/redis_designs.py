"""Three bare ways to keep a queue in Redis, each a whole life of jobs in batches with fenced acknowledgements.

They keep nothing else: no ledger, keys, gates, counters or memory of settles. What they do is the bound of what a store
could do that is built so, and the reason why ours is built as it is (docs/decisions).

    streams  one stream and a consumer group; an acknowledgement looks at XPENDING first, since XACK has no fence
    lists    a list of ids, payloads in a hash, leases in a sorted set whose member is the fence
    sets     the same with a sorted set instead of the list, so that any order can be kept
"""

from typing import Final

import redis

ENQUEUE, CLAIM, ACK = range(3)

STREAMS: Final = (
    "for _, body in ipairs(ARGV) do redis.call('XADD', 'q', '*', 'b', body) end",
    """
    local got = redis.call('XREADGROUP', 'GROUP', 'g', 'c', 'COUNT', ARGV[1], 'STREAMS', 'q', '>')
    local reply = {}
    for _, entry in ipairs(got[1][2]) do
      reply[#reply + 1] = entry[1]
      reply[#reply + 1] = entry[2][2]
    end
    return reply
    """,
    """
    local done = 0
    for _, id in ipairs(ARGV) do
      local held = redis.call('XPENDING', 'q', 'g', id, id, 1)[1]
      if held and held[2] == 'c' and held[4] == 1 then
        redis.call('XACK', 'q', 'g', id)
        done = done + redis.call('XDEL', 'q', id)
      end
    end
    return done
    """,
)

_TAKE: Final = """
    local reply, leases = {}, {}
    for i, id in ipairs(ids) do
      leases[2 * i - 1], leases[2 * i] = 9999999999, id .. ':1'
    end
    redis.call('ZADD', 'lease', unpack(leases))
    for i, body in ipairs(redis.call('HMGET', 'job', unpack(ids))) do
      reply[2 * i - 1], reply[2 * i] = ids[i], body
    end
    return reply
"""

_DONE: Final = """
    local held, done = {}, 0
    for i, id in ipairs(ARGV) do held[i] = id .. ':1' end
    done = redis.call('ZREM', 'lease', unpack(held))
    redis.call('HDEL', 'job', unpack(ARGV))
    return done
"""

LISTS: Final = (
    """
    local id, jobs, ids = redis.call('INCRBY', 'last', #ARGV) - #ARGV, {}, {}
    for i, body in ipairs(ARGV) do
      ids[i], jobs[2 * i - 1], jobs[2 * i] = id + i, id + i, body
    end
    redis.call('HSET', 'job', unpack(jobs))
    redis.call('RPUSH', 'q', unpack(ids))
    """,
    "local ids = redis.call('LPOP', 'q', ARGV[1])" + _TAKE,
    _DONE,
)

SETS: Final = (
    """
    local id, jobs, ids = redis.call('INCRBY', 'last', #ARGV) - #ARGV, {}, {}
    for i, body in ipairs(ARGV) do
      ids[2 * i - 1], ids[2 * i], jobs[2 * i - 1], jobs[2 * i] = id + i, id + i, id + i, body
    end
    redis.call('HSET', 'job', unpack(jobs))
    redis.call('ZADD', 'q', unpack(ids))
    """,
    "local ids = {} for i, id in ipairs(redis.call('ZPOPMIN', 'q', ARGV[1])) do\n"
    "if i % 2 == 1 then ids[#ids + 1] = id end end" + _TAKE,
    _DONE,
)


def live(client: "redis.Redis", scripts: tuple[str, str, str], jobs: int, batch: int, body: bytes) -> None:
    """So many jobs, from their enqueue to their acknowledgement."""
    client.flushdb()
    if scripts is STREAMS:
        client.xgroup_create("q", "g", mkstream=True)
    put, take, end = (client.register_script(text) for text in scripts)
    for _ in range(jobs // batch):
        put(args=[body] * batch)
        reply = take(args=[batch])
        assert end(args=reply[::2]) == batch
