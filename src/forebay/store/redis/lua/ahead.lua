-- How many ready jobs of its class go before one: its id, so many to count at most in a stream. -1: it is not ready.
local sid, most = ARGV[3], tonumber(ARGV[4])
local r = fetch_one(sid)
if not r or r[STATE] ~= READY then
  return -1
end
local key, place, l = P .. 'r:' .. r[QUEUE] .. '|' .. r[CLS], r[RANK] .. sid, line(r[QUEUE])
if is_unread(r) then
  return call('ZLEXCOUNT', key, '-', '(' .. place) + #streams.unread(l, most, entry_id(sid, r[MORE].flow))
end
local before = call('ZRANK', key, place)
if r[CLS] == '' and l.streamed > 0 then
  for _, entry in ipairs(streams.unread(l, most)) do
    local due, job = string.match(entry[1], '^(%d+)-(%d+)$')
    if shifted(ZERO, tonumber(due)) .. sid_of(tonumber(job)) > place then
      break
    end
    before = before + 1
  end
end
return before
