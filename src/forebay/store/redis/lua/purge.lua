-- Purge: the number of a finished state, an instant, so many at most, and the queue that they lie in, or an empty text.
local before = answered()
if before then
  return before[1]
end
local key = P .. 'e:' .. ARGV[3] .. (ARGV[6] ~= '' and '|' .. ARGV[6] or '')
local sids = call('ZRANGE', key, '-inf', '(' .. ARGV[4], 'BYSCORE', 'LIMIT', 0, ARGV[5])
forget_all(sids)
if #sids > 0 then
  tell('purge')
end
finish()
return answer({ #sids })[1]
