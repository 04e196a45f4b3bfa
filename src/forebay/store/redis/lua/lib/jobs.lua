-- Records of jobs. A record is a list; what most jobs do not have is in its last field, by name, or that is false.
-- Alike jobs have equal records, since a record has no id: so one is decoded, changed and encoded once for all of them.
-- A decoded record is never changed: `edited` gives a copy that may be.
--
--   more: base priority tenant subject key deadline expires meta cost · gates, gate: where it is parked · merges, sheds
--         keyed: keys that its state holds · asked · mark: its last settle · errors · finished kept home

local STATE, QUEUE, CLS, KIND, RANK, DUE, BORN, LIVES, ATTEMPT, DELIVERY = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local TIMED, OWNER, CLAIMED, UNTIL, MORE = 11, 12, 13, 14, 15
local WAITING, READY, RUNNING, DONE, DEAD, CANCELLED = 0, 1, 2, 3, 4, 5
local NOTHING = {}

local HALF, LEAD, ZERO = 10000000000, 9007199254740992, '09223372036854775808'
local ERRORS_KEPT = 5

local decoded = {}

local function record(blob)
  local r = decoded[blob]
  if not r then
    r = decode(blob)
    decoded[blob] = r
  end
  return r
end

local function more(r)
  return r[MORE] or NOTHING
end

local function edited(r)
  local copy, extra = {}, {}
  for i = 1, UNTIL do
    copy[i] = r[i]
  end
  for name, value in pairs(more(r)) do
    extra[name] = value
  end
  copy[MORE] = extra
  return copy
end

local function encoded(r)
  if r[MORE] and next(r[MORE]) == nil then
    r[MORE] = false
  end
  return pack(r)
end

-- Ranks are 64 bits and more than a number of Lua holds: two halves of ten digits each, 2^63 added.
local function joined(high, low)
  if low >= HALF then
    high, low = high + 1, low - HALF
  elseif low < 0 then
    high, low = high - 1, low + HALF
  end
  return format('%010.0f%010.0f', high, low)
end

local function halves(rank)
  return tonumber(sub(rank, 1, 10)), tonumber(sub(rank, 11))
end

local function shifted(rank, by)
  local high, low = halves(rank)
  local carry = floor(by / HALF)
  return joined(high + carry, low + (by - carry * HALF))
end

-- A rank whose base was `was` and is `is` now.
local function rebased(rank, was, is)
  local high, low = halves(rank)
  local was_high, was_low = halves(was)
  local is_high, is_low = halves(is)
  low = low + is_low - was_low
  local carry = floor(low / HALF)
  return joined(high + is_high - was_high + carry, low - carry * HALF)
end

local function rank_at(base, timed, due)
  if timed == 0 then
    return base
  end
  return shifted(base, timed == 2 and due > now and due - LEAD or due)
end

local plain_ranks = {}

-- Whether a ready job is not found by its rank when the oldest is looked for.
local function is_odd(r)
  if r[CLS] ~= '' then
    return true
  end
  local plain = plain_ranks[r[DUE]]
  if not plain then
    plain = shifted(ZERO, r[DUE])
    plain_ranks[r[DUE]] = plain
  end
  return r[RANK] ~= plain
end

-- The records of many jobs, false where there is none; `kind` is the letter of the hash.
local function fetch(sids, kind)
  local found, i, n = {}, 1, #sids
  while i <= n do
    local bucket, j = sub(sids[i], 1, 14), i + 1
    while j <= n and sub(sids[j], 1, 14) == bucket do
      j = j + 1
    end
    local some = call('HMGET', P .. (kind or 'j') .. ':' .. bucket, unpack(sids, i, j - 1))
    for k = 1, #some do
      found[i + k - 1] = some[k]
    end
    i = j
  end
  return found
end

local function fetch_one(sid)
  local blob = call('HGET', P .. 'j:' .. sub(sid, 1, 14), sid)
  return blob and record(blob) or nil
end

-- Many values at once; a new job's bucket is made known by whoever makes it.
local function store(kind, sids, values)
  local i, n = 1, #sids
  while i <= n do
    local bucket, pairs_, j = sub(sids[i], 1, 14), {}, i
    while j <= n and sub(sids[j], 1, 14) == bucket do
      pairs_[#pairs_ + 1] = sids[j]
      pairs_[#pairs_ + 1] = values[j]
      j = j + 1
    end
    call('HSET', P .. kind .. ':' .. bucket, unpack(pairs_))
    if kind == 'b' then
      call('ZADD', P .. 'buckets', 0, bucket)
    end
    i = j
  end
end

-- Records and payloads are gone; `results`: there may be results as well.
local function erase(sids, results)
  local i, n = 1, #sids
  while i <= n do
    local bucket, j = sub(sids[i], 1, 14), i + 1
    while j <= n and sub(sids[j], 1, 14) == bucket do
      j = j + 1
    end
    call('HDEL', P .. 'j:' .. bucket, unpack(sids, i, j - 1))
    call('HDEL', P .. 'b:' .. bucket, unpack(sids, i, j - 1))
    if results then
      call('HDEL', P .. 'x:' .. bucket, unpack(sids, i, j - 1))
    end
    if call('EXISTS', P .. 'j:' .. bucket) == 0 then
      call('ZREM', P .. 'buckets', bucket)
    end
    i = j
  end
end

-- Jobs for a reply: id, record, payload; `results`: and the result, or an empty text.
local function pictures(sids, blobs, results)
  local bodies, ends, reply = fetch(sids, 'b'), results and fetch(sids, 'x'), {}
  for i = 1, #sids do
    if blobs[i] then
      reply[#reply + 1] = sids[i]
      reply[#reply + 1] = blobs[i]
      reply[#reply + 1] = bodies[i] or ''
      if results then
        reply[#reply + 1] = ends[i] or ''
      end
    end
  end
  return reply
end

-- The last few failures of a job, with one more.
local function failures(r, error)
  local errors, all = {}, more(r).errors or NOTHING
  for i = max(1, #all + 2 - ERRORS_KEPT), #all do
    errors[#errors + 1] = all[i]
  end
  errors[#errors + 1] = { error[1], error[2], error[3], r[ATTEMPT], now }
  return errors
end
