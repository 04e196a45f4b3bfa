-- Gates in use: the name to go on after, so many at most. Name, slots, held, parked of each.
local reply, after, limit = {}, ARGV[3], tonumber(ARGV[4])
while #reply < limit do
  local names = call('ZRANGE', P .. 'gates', after == '' and '-' or '(' .. after, '+', 'BYLEX', 'LIMIT', 0, limit)
  for _, name in ipairs(names) do
    local g = find_gate(name)
    if g and #reply < limit and (g.held > 0 or g.parked > 0 or g.standing > 0) then
      reply[#reply + 1] = { name, slots_of(g), g.held, g.parked }
    end
  end
  if #names < limit then
    break
  end
  after = names[#names]
end
return reply
