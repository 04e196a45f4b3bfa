-- Announce a worker: owner, how long it is to be known, what it says. Those whose time is up are forgotten.
local owner, till = ARGV[3], now + tonumber(ARGV[4])
for _, late in ipairs(call('ZRANGE', P .. 'workers_until', '-inf', text(now), 'BYSCORE', 'LIMIT', 0, BATCH)) do
  forget_worker(late)
end
local known = call('HGET', P .. 'workers', owner)
call('HSET', P .. 'workers', owner, pack({ ARGV[5], known and decode(known)[2] or now, now }))
call('ZADD', P .. 'workers_until', text(till), owner)
call('ZADD', P .. 'workers_names', 0, owner)
return 1
