-- Gates in use: the name to go on after, so many at most, how names begin. Name, slots, used of each, and the operator's
-- number where there is one. No text in UTF-8 holds the byte 255.
local reply, after, limit, prefix = {}, ARGV[3], tonumber(ARGV[4]), ARGV[5]
local first_name = prefix == '' and '-' or '[' .. prefix
local last = prefix == '' and '+' or '(' .. prefix .. '\255'

-- What the spec of the queue that used the gate last gives it.
local function limit_of(name, state)
  local q = state.queue and queue_of(state.queue)
  for _, gate in ipairs(q and q.rule.whole or NOTHING) do
    if gate.name == name then
      return gate.limit
    end
  end
  local gate = q and gate_of(q, name)
  return gate and gate.limit or 0
end

while #reply < limit do
  local names = call('ZRANGE', P .. 'gates', after < prefix and first_name or '(' .. after, last, 'BYLEX', 'LIMIT', 0, limit)
  for _, name in ipairs(names) do
    local state = state_of(name)
    if #reply < limit and (state.used > 0 or state.tat > now or state.given) then
      reply[#reply + 1] = { name, state.given or limit_of(name, state), state.used, state.given }
    end
  end
  if #names < limit then
    break
  end
  after = names[#names]
end
return reply
