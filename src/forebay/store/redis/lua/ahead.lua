-- How many ready jobs of its lane go before one: its id, so many to count at most. -1: it is not ready.
local sid, most = ARGV[3], tonumber(ARGV[4])
local r = fetch_one(sid)
if not r or r[STATE] ~= READY then
  return -1
end
return streams.ahead(queue_of(r[QUEUE]), sid, r, most)
