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
