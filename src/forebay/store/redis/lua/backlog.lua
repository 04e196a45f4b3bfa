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
    due = min(due, tonumber(string.match(entry[1], '%d+')))
  end
  if q[READY] > 0 then
    for _, place in ipairs(call('ZRANGE', P .. 'r:' .. q.name .. '|', '[' .. ZERO, '+', 'BYLEX', 'LIMIT', 0, 64)) do
      local r = fetch_one(sub(place, 21))
      if not is_odd(r) then
        return min(due, r[DUE])
      end
    end
  end
  return min(due, now)
end

local function taken_keys(q)
  local taken = call('ZCOUNT', P .. 'ku:' .. q.name, '(' .. text(now), '(' .. text(MOST))
  for state = 0, 5 do
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
    if i == 1 and is_open(gate_of(q, name), cost_of(fetch_one(sub(member, 41, 56)))) then
      return 0
    end
    n = n + (n < most and call('ZCARD', P .. 'r:' .. q.name .. '|' .. sub(member, 57)) or 0)
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
  local blocked = call('SCARD', P .. 'blocked:' .. name)
  reply[#reply + 1] = { name, q[0], q[1], q[2], q[3], q[4], q[5], oldest(q), q.paused, taken_keys(q), held(q), blocked }
end
return reply
