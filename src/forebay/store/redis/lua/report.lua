-- Report progress: an id, a delivery, a portion and a note each. For each 1: it was current, 0: it is stale.
local replies = {}
for i, each in ipairs(decode(ARGV[3])) do
  local r = fetch_one(each[1])
  local current = r and r[STATE] == RUNNING and r[DELIVERY] == each[2]
  if current then
    call('HSET', P .. 'progress', each[1], pack({ each[2], each[3], each[4], now }))
  end
  replies[i] = current and 1 or 0
end
return replies
