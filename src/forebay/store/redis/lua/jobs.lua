-- Records of jobs. A record is a list; what most jobs do not have is in its last field, by name, or that is false.
-- Alike jobs have equal records, since a record has no id: so one is decoded, changed and encoded once for all of them.
-- A decoded record is never changed: `edited` gives a copy that may be.
--
--   more: base priority tenant subject key deadline expires meta cost · gates: names of those of its lane
--         line, blocks: a dead head shuts it, behind: it waits for the head · merges, sheds
--         keyed: keys that its state holds · cancel_requested · mark: its last settle · errors · finished kept home · flow
-- needs: keys

local STATE, QUEUE, CLS, KIND, RANK, DUE, ENQUEUED, MAX_ATTEMPTS, ATTEMPT, DELIVERY = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local TIMED, OWNER, CLAIMED, UNTIL, MORE = 11, 12, 13, 14, 15
local WAITING, READY, RUNNING, DONE, DEAD, CANCELLED = 0, 1, 2, 3, 4, 5
local NOTHING = {}

local HALF, LEAD, ZERO, START = 10000000000, 9007199254740992, '09223372036854775808', '00000000000000000000'
local ERROR_KIND, ERROR_MESSAGE, ERROR_TRACE = 1, 2, 3
local ERRORS_KEPT = 5

local decoded = {}

-- The index of the last id in the bucket of the id at an index; ids mostly come in order, so a bucket is a run of them.
local function end_of_bucket(sids, i)
  local first = sub(sids[i], 1, BUCKET_END)
  local last, n = first .. ':', #sids
  while i < n and sids[i + 1] > first and sids[i + 1] < last do
    i = i + 1
  end
  return i, first
end

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

-- The rank of a job that returns to the place that it had: in a FIFO queue it leads.
local function rank_back(rank, timed)
  return timed == 2 and rank >= ZERO and shifted(rank, -LEAD) or rank
end

-- The lane of a job, unique within its queue: the class alone where there are no gates.
local function lane_of(r)
  local gates = more(r).gates
  return gates and cjson.encode({ r[CLS], unpack(gates) }) or r[CLS]
end

local plain_ranks = {}

-- Whether the rank of a ready job says nothing of its due time, so that the oldest job is not found by rank.
local function is_odd(r)
  if r[CLS] ~= '' or more(r).gates then
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
  local found, i = {}, 1
  while i <= #sids do
    local last, bucket = end_of_bucket(sids, i)
    local some = call('HMGET', P .. (kind or 'j') .. ':' .. bucket, unpack(sids, i, last))
    for k = 1, #some do
      found[i + k - 1] = some[k]
    end
    i = last + 1
  end
  return found
end

local function fetch_one(sid)
  local blob = call('HGET', P .. 'j:' .. sub(sid, 1, BUCKET_END), sid)
  return blob and record(blob) or nil
end

-- Many values at once.
local function store(kind, sids, values)
  local i = 1
  while i <= #sids do
    local last, bucket = end_of_bucket(sids, i)
    local both, size = {}, 0
    for k = i, last do
      both[size + 1], both[size + 2] = sids[k], values[k]
      size = size + 2
    end
    if kind == 'b' and call('EXISTS', P .. 'b:' .. bucket) == 0 then
      call('ZADD', P .. 'buckets', 0, bucket)
    end
    call('HSET', P .. kind .. ':' .. bucket, unpack(both))
    i = last + 1
  end
end

-- Records and payloads are gone; `results`: there may be results as well.
local function erase(sids, results)
  local i = 1
  while i <= #sids do
    local last, bucket = end_of_bucket(sids, i)
    call('HDEL', P .. 'j:' .. bucket, unpack(sids, i, last))
    call('HDEL', P .. 'b:' .. bucket, unpack(sids, i, last))
    if results then
      call('HDEL', P .. 'x:' .. bucket, unpack(sids, i, last))
    end
    if call('EXISTS', P .. 'j:' .. bucket) == 0 then
      call('ZREM', P .. 'buckets', bucket)
    end
    i = last + 1
  end
end

-- Jobs for a reply: id, record, payload; `results`: and the result, or an empty text.
local function jobs_reply(sids, blobs, results)
  local bodies, ends, reply, size = fetch(sids, 'b'), results and fetch(sids, 'x'), {}, 0
  for i = 1, #sids do
    if blobs[i] then
      reply[size + 1], reply[size + 2], reply[size + 3] = sids[i], blobs[i], bodies[i] or ''
      size = size + 3
      if results then
        reply[size + 1] = ends[i] or ''
        size = size + 1
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
  errors[#errors + 1] = { error[ERROR_KIND], error[ERROR_MESSAGE], error[ERROR_TRACE], r[ATTEMPT], now }
  return errors
end
