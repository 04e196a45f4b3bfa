-- What holds a job: its id, so many to count at most. Gate, slots, used, before, and the head of a line or the instant at
-- which a rate opens, or empty texts.
local sid, most = ARGV[3], tonumber(ARGV[4])
local r = fetch_one(sid)

-- The job that decides whether gates are open for the lane of a ready job: the first that has not expired.
local function first_of_lane()
  local key = P .. 'r:' .. r[QUEUE] .. '|' .. lane_of(r)
  for from = 0, most, BATCH do
    for _, place in ipairs(call('ZRANGE', key, from, from + BATCH - 1)) do
      local head = fetch_one(sub(place, 21))
      if (more(head).expires or MOST) > now then
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
return { gate.name, state.given or gate.limit, used_of(gate.name), before, '', opens and opens < MOST and opens or '' }
