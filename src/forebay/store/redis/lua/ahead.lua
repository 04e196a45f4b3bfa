-- How many ready jobs of its class go before one: its id. -1: it is not ready.
local r = fetch_one(ARGV[3])
if not r or r[STATE] ~= READY then
  return -1
end
return call('ZRANK', P .. 'r:' .. r[QUEUE] .. '|' .. r[CLS], r[RANK] .. ARGV[3])
