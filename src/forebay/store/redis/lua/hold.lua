-- What holds a job: its id, so many to count at most. Gate, slots, held, parked, before, and the head of a line or the
-- instant at which a rate lets the next of the queue in, or empty texts; and whether those before are of its class.
local sid, most = ARGV[3], tonumber(ARGV[4])
local r = fetch_one(sid)
local name = r and r[STATE] == WAITING and more(r).gate
local g = name and find_gate(name)
if not g then
  return {}
end
if g.standing > 0 then
  local before = 0
  for _, blob in ipairs(fetch(call('ZRANGE', P .. 'line:' .. name, '-inf', '(' .. sid, 'BYSCORE', 'LIMIT', 0, most))) do
    if blob and more(record(blob)).gate == name then
      before = before + 1
    end
  end
  return { name, slots_of(g), g.held, g.parked, before, head_of_line(name), '', 0 }
end
local by_class = share_at(more(r), name)
local key = by_class and class_key(r[QUEUE], name, r[CLS]) or P .. 'gp:' .. name
local before = min(most, call('ZRANK', key, r[RANK] .. sid) or 0)
local pace = g.step > 0 and call('HGET', P .. 'pace:' .. r[QUEUE], name)
local opens = pace and tonumber(string.match(pace, '^[^|]*', 37))
return { name, slots_of(g), g.held, g.parked, before, '', opens and max(opens, now) or '', by_class and 1 or 0 }
