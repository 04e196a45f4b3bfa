-- Gates in use: the name to go on after, so many at most, how names begin. Name, slots, held, parked of each, and the
-- operator's number where there is one. No text in UTF-8 holds the byte 255.
local reply, after, limit, prefix = {}, ARGV[3], tonumber(ARGV[4]), ARGV[5]
local first = prefix == '' and '-' or '[' .. prefix
local last = prefix == '' and '+' or '(' .. prefix .. '\255'
while #reply < limit do
  local names = call('ZRANGE', P .. 'gates', after < prefix and first or '(' .. after, last, 'BYLEX', 'LIMIT', 0, limit)
  for _, name in ipairs(names) do
    local g = find_gate(name)
    if g and #reply < limit and (g.held > 0 or g.parked > 0 or g.standing > 0) then
      reply[#reply + 1] = { name, slots_of(g), g.held, g.parked, g.limit }
    end
  end
  if #names < limit then
    break
  end
  after = names[#names]
end
return reply
