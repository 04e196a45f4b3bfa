-- What is shown of jobs, queues and gates; nothing here changes anything.
-- needs: keys

-- A page of names behind one, of those that begin with a prefix. No text in UTF-8 holds the byte 255.
local function page_of(key, after, limit, prefix)
  local first = after < prefix and '[' .. prefix or after == '' and '-' or '(' .. after
  local last = prefix == '' and '+' or '(' .. prefix .. '\255'
  return call('ZRANGE', P .. key, first, last, 'BYLEX', 'LIMIT', 0, limit)
end

-- verb: get (reads, needs queues)
-- Get: ids. Those that exist.
local sids = decode(ARGV[3])
return jobs_reply(sids, fetch(sids), true)

-- verb: browse (reads, needs queues)
-- Browse: the id to go on after, so many at most, so many to scan, and what must match: queue, state, kind, tenant,
-- subject, suspect. The id to go on after, or an empty text; and jobs in the order of their ids.
local after, limit, probes, query = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), decode(ARGV[6])
local found, records, last, full = {}, {}, nil, false

local function is_suspect(r)
  local errors = more(r).errors
  return errors ~= nil and errors[#errors][ERROR_KIND] == 'forebay.Abandoned'
end

local function matches(r)
  local m = more(r)
  return (query.queue == nil or r[QUEUE] == query.queue)
    and (query.state == nil or r[STATE] == query.state)
    and (query.kind == nil or r[KIND] == query.kind)
    and (query.tenant == nil or m.tenant == query.tenant)
    and (query.subject == nil or m.subject == query.subject)
    and (query.suspect == nil or is_suspect(r) == query.suspect)
end

-- Add a job to the page if it matches; whether the page has room for more.
local function visit(sid, blob)
  probes, last = probes - 1, sid
  if matches(record(blob)) then
    found[#found + 1], records[#records + 1] = sid, blob
  end
  full = #found == limit or probes == 0
  return not full
end

local function visit_all(sids)
  local blobs = fetch(sids)
  for i, sid in ipairs(sids) do
    if blobs[i] and not visit(sid, blobs[i]) then
      return
    end
  end
end

local function walk()
  local from = '[' .. sub(after, 1, BUCKET_END)
  while true do
    local buckets = call('ZRANGE', P .. 'buckets', from, '+', 'BYLEX', 'LIMIT', 0, 16)
    for _, bucket in ipairs(buckets) do
      local sids = call('HKEYS', P .. 'j:' .. bucket)
      table.sort(sids)
      local blobs = fetch(sids)
      for i, sid in ipairs(sids) do
        if sid > after and not visit(sid, blobs[i]) then
          return
        end
      end
      from = '(' .. bucket
    end
    if #buckets < 16 then
      return
    end
  end
end

local function any_after(sid)
  local newest = call('ZRANGE', P .. 'buckets', 0, 0, 'REV')[1]
  for _, each in ipairs(newest and call('HKEYS', P .. 'j:' .. newest) or NOTHING) do
    if each > sid then
      return true
    end
  end
  return false
end

if query.state == RUNNING and call('ZCARD', P .. 'lease') <= probes then
  local sids = {}
  for _, sid in ipairs(call('ZRANGE', P .. 'lease', 0, -1)) do
    if sid > after then
      sids[#sids + 1] = sid
    end
  end
  table.sort(sids)
  visit_all(sids)
elseif query.state == DEAD then
  visit_all(call('ZRANGE', P .. 'dead', '(' .. after, '+inf', 'BYSCORE', 'LIMIT', 0, probes))
else
  walk()
end
local reply = jobs_reply(found, records, true)
table.insert(reply, 1, full and any_after(last) and last or '')
return reply

-- verb: ended (reads, needs queues)
-- Which of these jobs have ended or are gone: ids.
local sids, reply = decode(ARGV[3]), {}
local blobs = fetch(sids)
for i, sid in ipairs(sids) do
  if not blobs[i] or record(blobs[i])[STATE] > RUNNING then
    reply[#reply + 1] = sid
  end
end
return reply

-- verb: ahead (reads, needs queues)
-- How many ready jobs of its lane go before one: its id, so many to count at most. -1: it is not ready.
local sid, most = ARGV[3], tonumber(ARGV[4])
local r = fetch_one(sid)
if not r or r[STATE] ~= READY then
  return -1
end
return streams.ahead(queue_of(r[QUEUE]), sid, r, most)

-- verb: hold (reads, needs gates)
-- What holds a job: its id, so many to count at most. Gate, slots, used, before, and the head of a line or the instant at
-- which a rate opens, or empty texts.
local sid, most = ARGV[3], tonumber(ARGV[4])
local r = fetch_one(sid)

-- The job that decides whether gates are open for the lane of a ready job: the first that has not expired.
local function first_of_lane()
  local key = P .. 'r:' .. r[QUEUE] .. '|' .. lane_of(r)
  for from = 0, most, BATCH do
    for _, place in ipairs(call('ZRANGE', key, from, from + BATCH - 1)) do
      local head = fetch_one(sub(place, SID_IN_PLACE))
      if (more(head).expires or MAX_INSTANT) > now then
        return head
      end
    end
  end
  return r
end

local function by_line(name)
  local head, shown = call('ZRANGE', P .. 'line:' .. name, 0, 0)[1], call('HGET', P .. 'exposed', name)
  local out = shown and fetch_one(shown)
  local between = max(0, call('ZCOUNT', P .. 'line:' .. name, head, '(' .. sid) - 1)
  return { name, 1, out and out[STATE] == RUNNING and 1 or 0, min(most, between), head, '' }
end

if r and r[STATE] == WAITING and more(r).behind and r[DUE] <= now then
  return by_line(more(r).line)
elseif not r or r[STATE] ~= READY then
  return {}
end
local q, cost = queue_of(r[QUEUE]), cost_of(first_of_lane())
local gate = closed_of(gates_of(q, r), cost)
if not gate then
  return {}
end
local state = state_of(gate.name)
local opens, before = gate.step > 0 and opens_at(gate, cost), min(most, streams.ahead(q, sid, r, most))
return { gate.name, state.given or gate.limit, used_of(gate.name), before, '', opens and opens < MAX_INSTANT and opens or '' }

-- verb: queues (reads, needs queues)
-- Queues by name: the name to go on after, so many at most, how names begin. Name and jobs by state of each.
local reply = {}
for _, name in ipairs(page_of('queues', ARGV[3], tonumber(ARGV[4]), ARGV[5])) do
  reply[#reply + 1] = { name, unpack(call('HMGET', P .. 'q:' .. name, 'waiting', 'ready', 'running', 'done', 'dead', 'cancelled')) }
end
return reply

-- verb: backlog (reads, needs gates)
-- Backlog: names, or none for all; so many held jobs to count. Now, and for each: the name, jobs by state, the due time of
-- the oldest that is ready, the end of a pause or 0, keys that are taken, jobs that a gate holds, lines whose head is dead.
local names, most, reply = decode(ARGV[3]), tonumber(ARGV[5]), { now }
if ARGV[4] == 'all' then
  names = call('ZRANGE', P .. 'queues', 0, -1)
end

local function oldest(q)
  local due = q[READY] > 0 and first_score(P .. 'odd:' .. q.name) or now
  local entry = q.streamed > 0 and streams.unread(q, 1)[1]
  if entry then
    due = min(due, tonumber(string.match(entry[ENTRY_ID], '%d+')))
  end
  if q[READY] > 0 then
    for _, place in ipairs(call('ZRANGE', P .. 'r:' .. q.name .. '|', '[' .. ZERO, '+', 'BYLEX', 'LIMIT', 0, 64)) do
      local r = fetch_one(sub(place, SID_IN_PLACE))
      if not is_odd(r) then
        return min(due, r[DUE])
      end
    end
  end
  return min(due, now)
end

local function taken_keys(q)
  local taken = call('ZCOUNT', P .. 'ku:' .. q.name, '(' .. text(now), '(' .. text(MAX_INSTANT))
  for state = WAITING, CANCELLED do
    if q.keyed and floor((q.rule.unique or 7) / 2 ^ state) % 2 == 1 then
      taken = taken + q.keyed[state + 1]
    end
  end
  return taken
end

-- Jobs of the lanes that are parked at a gate; none, if it has room for the first of them again.
local function held_at(q, name, most)
  local n = 0
  for i, member in ipairs(call('ZRANGE', P .. 'parked:' .. q.name .. '|' .. name, 0, most - 1)) do
    if i == 1 and is_open(gate_of(q, name), cost_of(fetch_one(sub(sub(member, AFTER_TURN, PARKED_END), SID_IN_PLACE)))) then
      return 0
    end
    n = n + (n < most and call('ZCARD', P .. 'r:' .. q.name .. '|' .. sub(member, AFTER_PARKED)) or 0)
  end
  return n
end

local function held(q)
  local n = 0
  if closed_of(q.rule.whole, 1) then
    return q[READY]
  end
  for _, name in ipairs(q.lanes > 0 and call('ZRANGE', P .. 'opens:' .. q.name, 0, most) or NOTHING) do
    n = n < most and n + held_at(q, name, most - n) or n
  end
  return min(n, most)
end

for _, name in ipairs(names) do
  local q = queue_of(name)
  local row = { name, unpack(q, WAITING, CANCELLED) }
  for _, value in ipairs({ oldest(q), q.paused, taken_keys(q), held(q), call('SCARD', P .. 'blocked:' .. name) }) do
    row[#row + 1] = value
  end
  reply[#reply + 1] = row
end
return reply

-- verb: gates (reads, needs gates)
-- Gates in use: the name to go on after, so many at most, how names begin. Name, slots, used of each, and the operator's
-- number where there is one.
local reply, after, limit = {}, ARGV[3], tonumber(ARGV[4])

local function limit_in(q, name)
  for _, gate in ipairs(q.rule.whole or NOTHING) do
    if gate.name == name then
      return gate.limit
    end
  end
  local gate = gate_of(q, name)
  return gate and gate.limit or nil
end

-- What the spec of the queue that used the gate last gives it, or that of another one.
local function limit_of(name, state)
  local limit = state.queue and limit_in(queue_of(state.queue), name)
  for _, queue in ipairs(state.queues or NOTHING) do
    limit = limit or limit_in(queue_of(queue), name)
  end
  for queue in pairs(state.by) do
    limit = limit or limit_in(queue_of(queue), name)
  end
  return limit or 0
end

while #reply < limit do
  local names = page_of('gates', after, limit, ARGV[5])
  for _, name in ipairs(names) do
    local state = state_of(name)
    local used = used_of(name)
    if #reply < limit and (used > 0 or state.tat > now or state.given) then
      reply[#reply + 1] = { name, state.given or limit_of(name, state), used, state.given }
    end
  end
  if #names < limit then
    break
  end
  after = names[#names]
end
return reply

-- verb: next_work (reads, needs lanes logs)
-- When a claim or a reaping may next find something in these queues, and how much their logs ever held.
local grown = 0
local soonest = min(first_score(P .. 'due') or MAX_INSTANT, first_score(P .. 'lease') or MAX_INSTANT)
for _, name in ipairs(decode(ARGV[3])) do
  local q = queue_of(name)
  if q.rule.log then
    grown = grown + appended(name)
  elseif q[READY] > 0 then
    soonest = min(soonest, max(workable_at(q), q.paused))
  end
end
return { soonest, grown }
