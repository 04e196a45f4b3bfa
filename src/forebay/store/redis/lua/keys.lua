-- The legend of every key, the clock, and the answers that are kept for repeated calls. Every script begins with this file.
--
-- A file is a library, then verbs: `-- needs:` names the libraries that its own builds on, and a script is one verb behind
-- all that it needs (scripts.py). A verb is `reads`: it changes nothing; `grows`: a server without memory refuses it;
-- `once`: its body is a function for `once`, below; `token`: it stores by itself what it did.
-- Large libraries name what they export and are functions that are called at once: Lua allows 200 names in a function.
--
-- All keys begin with the prefix, whose hash tag keeps them in one slot of a cluster. In a key and in a member an id is
-- 16 digits (a `sid`), a rank 20, and a `place` is a rank and an id: places sort as (rank, id) do, as text. Instants are
-- microseconds. Where a set is empty Redis has no key, so an unused set leaves no key behind.
--
--   head               hash    last: the id given last · specs: counts changes of specs · half, filled: see `gone0`
--                              delivery: `streams`, if the store delivers by them
--   queues             zset    names of queues that are configured, paused or hold jobs
--   q:<queue>          hash    version · paused · rule: what scripts read of the spec · how many jobs, by state · keyed
--                              tail, streamed: the last place of its stream, and how many of its jobs were never claimed
--                              lanes: how many have ready jobs · turn: of the class that started last
--                              extra_cost: what running jobs cost beyond 1 each · scan: lanes from this cursor on are as an
--                              earlier spec had them · sheds: jobs are being marked for a spec that sheds
--   spec:<queue>       string  the spec as JSON, for the clients
--
--   j:<14 digits>      hash    up to 100 jobs by id: the record, see jobs.lua;  b: their payloads;  x: their results
--   buckets            zset    the 14 digits of those hashes
--   due                zset    waiting jobs, but for those behind the head of a line, by due time
--   r:<queue>|<lane>   zset    ready jobs of a lane, by place, but for those in a stream; the lane without class and gates
--                              has no name, and a queue that has no other keeps nothing else of it
--   s:<queue>          stream  delivery by streams, see streams.lua;  streams: zset of the queues that have one
--   odd:<queue>        zset    those of them whose rank is not their due time or that have a lane of their own, by due time
--   lease              zset    running jobs, by the end of their lease
--   expire             zset    waiting and ready jobs that expire, by when
--   kept               zset    finished jobs that are deleted at an instant, by that
--   e:<state>          zset    finished jobs by when they ended;  e:<state>|<queue>: those of one queue
--   dead               zset    dead jobs by id
--   over_dead_limit    zset    queues with more dead jobs than they keep
--   old:<queue>        zset    waiting and ready jobs of a queue that sheds, by id;  low:<queue>: the same by place
--   fresh:<queue>      hash    subject: the job that takes over newer work of it
--   gone0, gone1       hash    the last settle of jobs that are gone; the older half is dropped when the newer is full
--
--   k:<queue>          hash    idempotency keys: job, digest, until;  ku:<queue>: zset of the keys by until
--   windows            zset    queues by the first of their keys to leave its window
--
--   g:<gate>           hash    tat, the queue that used it last, @<queue>: slots that running jobs of a queue use of a cap of
--                              lanes, whatever its spec;  gates: zset of names, also of those with a number
--   limits             hash    operators' own numbers of slots, by gate;  tats: zset of rates by tat
--   terms:<gate>       set     queues whose spec has it, for the whole queue or, with a value behind it, for lanes
--   at:<queue>         hash    lanes that have ready jobs: place of the head, gate and turn where it is parked
--   open:<queue>|<class>       zset: open lanes of a class by the place of their head
--   turns:<queue>      zset    classes with open lanes, by their turn and the place of their first head
--   idle:<queue>       zset    some other classes whose turns are ahead, by turn;  turn:<queue>: hash of where a class is in both
--   parked:<queue>|<gate>      zset: lanes parked at a gate, by turn of their class and place of their head
--   parks:<gate>       set     queues with lanes parked there;  lanes:<gate>: zset of the lanes of an `Until`, by head
--   front:<queue>      zset    gates with room for the first lane parked there, by its turn and place;  front_places: hash of these
--   opens:<queue>      zset    gates that hold jobs of a queue, by when they open by themselves
--   openings           zset    queues by the first of these
--   line:<line>        zset    unfinished jobs of a line, and dead ones that block it, by id;  exposed: hash of the job that it exposes
--   blocked:<queue>    set     lines whose head is dead
--
--   schedules          hash    name: body, next, paused, last job, rule and zone;  ticks: hash of their last slots, also of dropped ones
--   sources            hash    source: its checkpoint;  sources_at: zset of sources by when they last moved
--   ledger             stream  one entry a call, its id is the offset + 1;  book: hash of its rule, extent and size
--   logs               zset    names of logs
--   log:<log>          hash    partitions, and of each: first, next, at
--   l:<log>|<number>   stream  a partition: the id of an entry is its offset + 1
--   groups:<log>       zset    names of groups;  lg:<log>|<group>: hash of its positions;  lm: zset of members by lease
--   workers            hash    owner: its presence, since when, last seen;  workers_names: zset by name
--   workers_until      zset    owners by when their time is up
--   t:<token>          string  the answer of a call, for its repetition; it expires
--   sync               string  in a cluster: what is written before WAIT (cluster.py)
--   progress           hash    running jobs that say how far they are: delivery, portion, note, when
--   cancel_requested:<owner>   set of the running jobs of an owner whose cancellation is requested
--   work, room         channels: queues that may have work, or room
--   ended              channel: jobs that have ended and were not acknowledged and gone
--   cancel_requested   channel: an owner of jobs whose cancellation is requested

local P, TOKEN = KEYS[1], ARGV[2]
local call, pack, decode = redis.call, cmsgpack.pack, cmsgpack.unpack
local sub, format, floor, min, max = string.sub, string.format, math.floor, math.min, math.max

local MAX_INSTANT = 7258118400000000
local BATCH = 1000
local ANSWER_KEPT = 60000

local function clock()
  if ARGV[1] ~= '' then
    return tonumber(ARGV[1])
  end
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

local now = clock()

-- Numbers beyond 14 digits are never joined to text by Lua's own dots, which round them.
local function text(number)
  return format('%.0f', number)
end

local function sid_of(id)
  return format('%016.0f', id)
end

-- So many ids in a row.
local function sids_from(first, n)
  local sids, bucket, place = {}, floor(first / 100), first % 100
  local digits = format('%014.0f', bucket)
  for i = 1, n do
    sids[i] = digits .. (place < 10 and '0' .. place or place)
    place = place + 1
    if place == 100 then
      bucket, place = bucket + 1, 0
      digits = format('%014.0f', bucket)
    end
  end
  return sids
end

-- The first number from `low` on, `high` at most, that is not before.
local function lower_bound(low, high, is_before)
  while low < high do
    local middle = floor((low + high) / 2)
    if is_before(middle) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- A command for a list of any length, in batches: the number of arguments is bounded.
local function call_all(command, key, list)
  for i = 1, #list, BATCH do
    call(command, key, unpack(list, i, min(i + BATCH - 1, #list)))
  end
end

-- Set the fields of a hash that have a value, delete those that are false.
local function write_hash(key, values)
  local kept, gone = {}, {}
  for field, value in pairs(values) do
    if value then
      kept[#kept + 1], kept[#kept + 2] = field, value
    else
      gone[#gone + 1] = field
    end
  end
  call_all('HSET', key, kept)
  call_all('HDEL', key, gone)
end

-- All elements of a list, also those that are added meanwhile: `pairs` would leave some out.
local function every(list)
  local i = 0
  return function()
    i = i + 1
    return list[i]
  end
end

local function first_score(key)
  return tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
end

local function answered()
  local kept = TOKEN ~= '' and call('GET', P .. 't:' .. TOKEN)
  return kept and decode(kept) or nil
end

local function answer(reply)
  if TOKEN ~= '' then
    call('SET', P .. 't:' .. TOKEN, pack(reply), 'PX', ANSWER_KEPT)
  end
  return reply
end

-- A call that was made before, with this token, gets the same answer. A refused call has changed nothing, so it is decided
-- again when it is repeated.
local REFUSED = true

local function once(verb)
  local before = answered()
  if before then
    return before
  end
  local reply, refused = verb()
  return refused and reply or answer(reply)
end
