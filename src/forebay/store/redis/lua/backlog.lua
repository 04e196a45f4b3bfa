-- Backlog: names, or none for all. Now, and for each: the name, jobs by state, the due time of the oldest that is ready, the end
-- of a pause or 0, keys that are taken, the due time of the oldest that is parked, and lines whose head is dead.
local names, reply = decode(ARGV[3]), { now }
if ARGV[4] == 'all' then
  names = call('ZRANGE', P .. 'queues', 0, -1)
end

local function oldest(l)
  local due = l[READY] > 0 and first_score(P .. 'odd:' .. l.name) or now
  local entry = l.streamed > 0 and streams.unread(l, 1)[1]
  if entry then
    due = min(due, tonumber(string.match(entry[1], '%d+')))
  end
  if l[READY] > 0 then
    for _, place in ipairs(call('ZRANGE', P .. 'r:' .. l.name .. '|', '[' .. ZERO, '+', 'BYLEX', 'LIMIT', 0, 64)) do
      local r = fetch_one(sub(place, 21))
      if not is_odd(r) then
        return min(due, r[DUE])
      end
    end
  end
  return min(due, now)
end

local function taken_keys(l)
  local taken = call('ZCOUNT', P .. 'ku:' .. l.name, '(' .. text(now), '(' .. text(MOST))
  for state = 0, 5 do
    if l.keyed and floor((l.rule.unique or 7) / 2 ^ state) % 2 == 1 then
      taken = taken + l.keyed[state + 1]
    end
  end
  return taken
end

for _, name in ipairs(names) do
  local l = line(name)
  local parked, blocked = min(now, first_score(P .. 'held:' .. name) or now), call('SCARD', P .. 'blocked:' .. name)
  reply[#reply + 1] = { name, l[0], l[1], l[2], l[3], l[4], l[5], oldest(l), l.paused, taken_keys(l), parked, blocked }
end
return reply
