-- Pause or resume: the verb, a queue, the end of the pause or 0.
local verb, name, till = ARGV[3], ARGV[4], tonumber(ARGV[5])
local q = queue_of(name)
if q.paused ~= till then
  q.paused, q.changed = till, true
  if till > 0 then
    call('HSET', P .. 'q:' .. name, 'paused', till)
  else
    call('HDEL', P .. 'q:' .. name, 'paused')
  end
  tell(verb, nil, name)
end
if till == 0 and q[READY] > 0 then
  news[name] = true
end
finish()
return 1
