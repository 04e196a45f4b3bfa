-- What operators do to jobs, queues and gates.
-- needs: maintain

-- verb: cancel (once)
-- Cancel: ids. For each 0: gone, 1: it will not run, 2: its holder is notified.
local GONE, CANCELLED_NOW, REQUESTED = 0, 1, 2
local replies, marks, ends, owners = {}, {}, {}, {}

-- A job that does not run is cancelled.
local function discard(sid, r)
  local keep, m = kept_until(r[QUEUE]), more(r)
  if keep then
    local is = edited(r)
    is[STATE], is[MORE].finished, is[MORE].kept, is[MORE].behind, is[MORE].merges = CANCELLED, now, keep, nil, nil
    move(sid, r, is)
  else
    move(sid, r, nil)
    has_ended[sid] = true
    if m.mark then
      marks[#marks + 1] = sid
      marks[#marks + 1] = m.mark
    end
  end
  add_plain('cancelled', sid, r[QUEUE], r, keep)
end

for i, sid in ipairs(decode(ARGV[3])) do
  local r = fetch_one(sid)
  if not r or r[STATE] > RUNNING then
    replies[i] = GONE
  elseif r[STATE] == RUNNING then
    replies[i] = REQUESTED
    if not more(r).cancel_requested then
      local is = edited(r)
      is[MORE].cancel_requested = true
      move(sid, r, is)
      ends[#ends + 1] = { sid, r }
      owners[r[OWNER]] = true
    end
  else
    replies[i] = CANCELLED_NOW
    discard(sid, r)
  end
end
for _, each in ipairs(ends) do
  add_held('cancel_requested', tonumber(each[1]), 1, each[2], 0)
end
if #builder.ranges > 0 then
  set_verb('cancel')
end
keep_marks(marks)
write_all()
for owner in pairs(owners) do
  call('SPUBLISH', P .. 'cancel_requested', owner)
end
return replies

-- verb: redrive (once)
-- Redrive: ids. The dead among them are due now, in the queue in which they died, with all attempts back; those, or why
-- the call is refused.
local arrivals, found, seen = {}, {}, {}
for _, sid in ipairs(decode(ARGV[3])) do
  local r = not seen[sid] and fetch_one(sid)
  if r and r[STATE] == DEAD then
    local home = more(r).home or r[QUEUE]
    arrivals[home] = (arrivals[home] or 0) + 1
    found[#found + 1] = { sid, r, home }
    seen[sid] = true
  end
end
for queue, arriving in pairs(arrivals) do
  local q = queue_of(queue)
  if q.rule.limit and depth(q) + arriving > q.rule.limit then
    return { 'full', queue, depth(q), q.rule.limit, arriving }, REFUSED
  end
end
local reply = { 'ok' }
for _, each in ipairs(found) do
  local sid, r, home = unpack(each)
  local is = edited(r)
  local m = is[MORE]
  is[STATE], is[QUEUE], is[ATTEMPT], is[DUE] = WAITING, home, 0, now
  is[RANK] = rank_at(m.base or ZERO, r[TIMED], now)
  m.home, m.kept, m.finished, m.cancel_requested, m.expires = nil, nil, nil, nil, nil
  m.sheds = marks_shed(queue_of(home))
  m.behind = m.line and true or nil
  move(sid, r, is)
  add_plain('redriven', sid, home, r, now)
  reply[#reply + 1] = sid
end
if #found > 0 then
  set_verb('redrive')
  maintain(MAINTAIN_LIMIT)
end
write_all()
return reply

-- verb: purge_dead (once)
-- Discard: ids. The dead among them are deleted; returns those.
local going, seen = {}, {}
for _, sid in ipairs(decode(ARGV[3])) do
  local r = not seen[sid] and fetch_one(sid)
  if r and r[STATE] == DEAD then
    going[#going + 1], seen[sid] = sid, true
  end
end
remove_all(going)
if #going > 0 then
  set_verb('purge')
end
write_all()
return going

-- verb: purge (once)
-- Purge: the number of a finished state, an instant, so many at most, and the queue that holds them, or an empty text.
local key = P .. 'e:' .. ARGV[3] .. (ARGV[6] ~= '' and '|' .. ARGV[6] or '')
local sids = call('ZRANGE', key, '-inf', '(' .. ARGV[4], 'BYSCORE', 'LIMIT', 0, ARGV[5])
remove_all(sids)
if #sids > 0 then
  set_verb('purge')
end
write_all()
return #sids

-- verb: put_spec (grows)
-- Put a spec: name, the spec as text, what scripts read of it, the count of changes that the caller has, partitions, and
-- the bucket after which jobs are not marked yet. `more` and a bucket: it is not put yet, and to be called again.
local BUCKETS_MARKED = 20
local name, body, rule, partitions = ARGV[3], ARGV[4], decode(ARGV[5]), tonumber(ARGV[7])
local q, changes = queue_of(name), tonumber(call('HGET', P .. 'head', 'specs') or 0)
local was = q.rule
if changes ~= tonumber(ARGV[6]) then
  return { 'stale' }
end
if q.version > 0 and (was.log and 1 or 0) ~= (rule.log and 1 or 0) then
  return { 'kind', was.log and 1 or 0 }
end
if rule.log and q.version == 0 and q[0] + q[1] + q[2] + q[3] + q[4] + q[5] > 0 then
  return { 'kind', 0 }
end
if rule.log and partitions < tonumber(call('HGET', P .. 'log:' .. name, 'partitions') or 0) then
  return { 'fewer' }
end

local function is_same(one, other)
  if type(one) ~= 'table' or type(other) ~= 'table' then
    return one == other
  end
  for field, value in pairs(one) do
    if not is_same(value, other[field]) then
      return false
    end
  end
  for field in pairs(other) do
    if one[field] == nil then
      return false
    end
  end
  return true
end

-- The queue begins to shed: mark the jobs that it has. The last bucket that was marked; nil: all are.
local function mark_some(after)
  local buckets = call('ZRANGE', P .. 'buckets', after == '' and '-' or '(' .. after, '+', 'BYLEX', 'LIMIT', 0, BUCKETS_MARKED)
  for _, bucket in ipairs(buckets) do
    local all = call('HGETALL', P .. 'j:' .. bucket)
    for i = 1, #all, 2 do
      local r = record(all[i + 1])
      if r[QUEUE] == name and not more(r).sheds then
        local is = edited(r)
        is[MORE].sheds = true
        move(all[i], r, is)
      end
    end
  end
  return #buckets == BUCKETS_MARKED and buckets[#buckets] or nil
end

if call('GET', P .. 'spec:' .. name) ~= body then
  local marked = rule.shed and not was.shed and mark_some(ARGV[8])
  if marked then
    q.sheds, q.changed = '1', true
    write_all()
    return { 'more', marked }
  end
  q.version, q.sheds = call('HINCRBY', P .. 'head', 'specs', 1), nil
  call('HSET', P .. 'q:' .. name, 'version', q.version, 'rule', ARGV[5])
  call('SET', P .. 'spec:' .. name, body)
  call('ZREM', P .. 'over_dead_limit', name)
  if is_same({ was.whole or 0, was.terms or 0, was.weights or 0, was.default },
    { rule.whole or 0, rule.terms or 0, rule.weights or 0, rule.default }) then
    q.rule = rule
  else
    configure(q, rule)
  end
  set_verb('put_spec', nil, name)
end
if rule.log then
  call('HSET', P .. 'log:' .. name, 'partitions', partitions)
  call('ZADD', P .. 'logs', 0, name)
end
q.changed, has_room[name] = true, true
write_all()
return { 'ok' }

-- verb: pause
-- Pause or resume: the verb, a queue, the end of the pause or 0.
local verb, name, till = ARGV[3], ARGV[4], tonumber(ARGV[5])
local q = queue_of(name)
if q.paused ~= till then
  q.paused, q.changed = till, true
  if till > 0 then
    call('HSET', P .. 'q:' .. name, 'paused', till)
  else
    call('HDEL', P .. 'q:' .. name, 'paused')
  end
  set_verb(verb, nil, name)
end
if till == 0 and q[READY] > 0 then
  has_work[name] = true
end
write_all()
return 1

-- verb: set_gate
-- Give a gate another number of slots: its name, the number or an empty text.
local name, limit = ARGV[3], tonumber(ARGV[4])
local state = state_of(name)
if state.given ~= limit then
  set_verb('set_gate', nil, name)
end
if limit then
  call('HSET', P .. 'limits', name, limit)
else
  call('HDEL', P .. 'limits', name)
end
state.given, state.changed, state.moved = limit, true, true
write_all()
return 1

-- verb: release (once)
-- Some jobs pass a condition for good: its gate, so many at most. They go on in the lane without it. How many did, and
-- whether that is all: one call meets a bounded number of jobs.
local MET, name, most = 100, ARGV[3], tonumber(ARGV[4])
maintain(MAINTAIN_LIMIT)

local function without(names)
  local others = {}
  for _, each in ipairs(names) do
    if each ~= name then
      others[#others + 1] = each
    end
  end
  return #others > 0 and others or nil
end

local released, met = 0, 0
while released < most and met < MET do
  local member = order.first(P .. 'lanes:' .. name)
  local sid = member and sub(member, 21, 36)
  local r = sid and fetch_one(sid)
  if not r then
    break
  end
  if (more(r).expires or MAX_INSTANT) <= now then
    dead_letter(sid, r, OUT_OF_TIME, 'expired')
  else
    local is = edited(r)
    is[MORE].gates = without(more(r).gates)
    move(sid, r, is)
    released = released + 1
  end
  met = met + 1
  refresh()
end
if released > 0 then
  set_verb('release', nil, name)
end
write_all()
return { released, (released == most or met < MET) and 1 or 0 }
