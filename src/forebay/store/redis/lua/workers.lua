-- Workers that announced themselves.
-- needs: keys
local function drop_worker(owner)
  call('HDEL', P .. 'workers', owner)
  call('ZREM', P .. 'workers_until', owner)
  call('ZREM', P .. 'workers_names', owner)
end

-- verb: announce
-- Announce a worker: owner, how long to keep it, its presence. Delete those past their time.
local owner, till = ARGV[3], now + tonumber(ARGV[4])
for _, late in ipairs(call('ZRANGE', P .. 'workers_until', '-inf', text(now), 'BYSCORE', 'LIMIT', 0, BATCH)) do
  drop_worker(late)
end
local known = call('HGET', P .. 'workers', owner)
call('HSET', P .. 'workers', owner, pack({ ARGV[5], known and decode(known)[2] or now, now }))
call('ZADD', P .. 'workers_until', text(till), owner)
call('ZADD', P .. 'workers_names', 0, owner)
return 1

-- verb: withdraw (once)
-- Delete what a worker announced: owner. Whether it was known.
local till = tonumber(call('ZSCORE', P .. 'workers_until', ARGV[3]) or 0)
drop_worker(ARGV[3])
return till > now and 1 or 0

-- verb: workers (reads)
-- Workers by owner: the owner to go on after, so many at most. What each says, since when it is known, when it was seen.
local reply, after, limit = {}, ARGV[3], tonumber(ARGV[4])
while #reply < limit do
  local from = after == '' and '-' or '(' .. after
  local owners = call('ZRANGE', P .. 'workers_names', from, '+', 'BYLEX', 'LIMIT', 0, limit)
  for _, owner in ipairs(owners) do
    if #reply < limit and tonumber(call('ZSCORE', P .. 'workers_until', owner)) > now then
      reply[#reply + 1] = decode(call('HGET', P .. 'workers', owner))
    end
  end
  if #owners < limit then
    break
  end
  after = owners[#owners]
end
return reply
