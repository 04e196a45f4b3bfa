-- Gates in use: the name to go on after, so many at most, how names begin. Name, slots, used of each, and the operator's
-- number where there is one. No text in UTF-8 holds the byte 255.
local reply, after, limit, prefix = {}, ARGV[3], tonumber(ARGV[4]), ARGV[5]
local first_name = prefix == '' and '-' or '[' .. prefix
local last = prefix == '' and '+' or '(' .. prefix .. '\255'

local function limit_in(q, name)
  for _, gate in ipairs(q.rule.whole or NOTHING) do
    if gate.name == name then
      return gate.limit
    end
  end
  local gate = gate_of(q, name)
  return gate and gate.limit or nil
end

-- What the spec of the queue that used the gate last gives it, or that of another one.
local function limit_of(name, state)
  local limit = state.queue and limit_in(queue_of(state.queue), name)
  for _, queue in ipairs(state.queues or NOTHING) do
    limit = limit or limit_in(queue_of(queue), name)
  end
  for queue in pairs(state.by) do
    limit = limit or limit_in(queue_of(queue), name)
  end
  return limit or 0
end

while #reply < limit do
  local names = call('ZRANGE', P .. 'gates', after < prefix and first_name or '(' .. after, last, 'BYLEX', 'LIMIT', 0, limit)
  for _, name in ipairs(names) do
    local state = state_of(name)
    local used = used_of(name)
    if #reply < limit and (used > 0 or state.tat > now or state.given) then
      reply[#reply + 1] = { name, state.given or limit_of(name, state), used, state.given }
    end
  end
  if #names < limit then
    break
  end
  after = names[#names]
end
return reply
