-- Gates: what running jobs use of them, and the arithmetic of `core.gate`. The numbers of a gate are those of the queue's
-- spec now, or the operator's. A call reads a gate once and writes it in the end.
--
-- Nothing has to be counted again when a spec changes. A cap of whole queues is used by what they run, which they count
-- anyway; a cap of lanes is counted by queue, under the names that are stamped on jobs, and those of queues whose spec
-- has the term now are added up.
-- needs: queues order

local states = {}
local cost_of, gate_of, gates_of, state_of, used_of, opens_at, is_open, room_of, closed_of, use_gates, give_back, write_gates,
  sweep_rates

(function()
  local any_given

  function cost_of(r)
    return more(r).cost or 1
  end

  -- A gate of a lane as the queue's spec has it now; false: the spec has no such term, so it holds nothing.
  function gate_of(q, name)
    if q.gates[name] == nil then
      q.gates[name] = false
      for _, term in ipairs(q.rule.terms or NOTHING) do
        if name == term.name and not term.per or term.per and sub(name, 1, #term.name + 1) == term.name .. '/' then
          q.gates[name] = { name = name, limit = term.limit, step = term.step }
          break
        end
      end
    end
    return q.gates[name]
  end

  -- The gates that a job has to pass: those of the whole queue, then those of its lane.
  function gates_of(q, r)
    local gates = { unpack(q.rule.whole or NOTHING) }
    for _, name in ipairs(more(r).gates or NOTHING) do
      gates[#gates + 1] = gate_of(q, name) or nil
    end
    return gates
  end

  -- Slots by queue, the theoretical arrival time, the queue that used it last, the operator's number. `whole`: it is a cap
  -- of whole queues.
  function state_of(name)
    local state = states[name]
    if not state then
      local kept, f = call('HGETALL', P .. 'g:' .. name), {}
      state = { name = name, by = {}, whole = string.match(name, '^cap/[^/]+$') ~= nil, stored = #kept > 0 }
      for i = 1, #kept, 2 do
        if sub(kept[i], 1, 1) == '@' then
          state.by[sub(kept[i], 2)] = tonumber(kept[i + 1])
        else
          f[kept[i]] = kept[i + 1]
        end
      end
      if any_given == nil then
        any_given = call('EXISTS', P .. 'limits') == 1
      end
      state.tat, state.queue, state.had = tonumber(f.tat or 0), f.queue, f.queue
      state.given = any_given and tonumber(call('HGET', P .. 'limits', name)) or nil
      states[name], states[#states + 1] = state, state
    end
    return state
  end

  function used_of(name)
    local state, used = state_of(name), 0
    if state.whole then
      state.queues = state.queues or call('SMEMBERS', P .. 'terms:' .. name)
      for _, queue in ipairs(state.queues) do
        used = used + running_cost(queue_of(queue))
      end
      return used
    end
    for queue, cost in pairs(state.by) do
      used = used + (gate_of(queue_of(queue), name) and cost or 0)
    end
    return used
  end

  -- When a rate admits a job of this cost.
  function opens_at(gate, cost)
    local state = state_of(gate.name)
    local limit = state.given or gate.limit
    return limit > 0 and state.tat - (limit - min(cost, limit)) * gate.step or MAX_INSTANT
  end

  function is_open(gate, cost)
    if gate.step > 0 then
      return opens_at(gate, cost) <= now
    end
    local slots = state_of(gate.name).given or gate.limit
    return used_of(gate.name) + min(cost, max(slots, 1)) <= slots
  end

  -- How many jobs of cost 1 a gate has room for.
  function room_of(gate)
    local state = state_of(gate.name)
    local slots = state.given or gate.limit
    return slots - (gate.step > 0 and math.ceil(max(state.tat - now, 0) / gate.step) or used_of(gate.name))
  end

  -- The first of these gates without room for the cost.
  function closed_of(gates, cost)
    for _, gate in ipairs(gates or NOTHING) do
      if not is_open(gate, cost) then
        return gate
      end
    end
    return nil
  end

  -- A cap that is stamped on jobs has so much more of this queue in use.
  local function add(q, name, cost)
    local state = state_of(name)
    if sub(name, 1, 5) ~= 'rate/' then
      state.by[q.name], state.changed = max(0, (state.by[q.name] or 0) + cost), true
      state.moved = state.moved or cost < 0
    end
  end

  -- A job starts.
  function use_gates(q, r)
    local cost = cost_of(r)
    q.starting = q.starting + cost
    for _, gate in ipairs(gates_of(q, r)) do
      local state = state_of(gate.name)
      state.queue, state.changed = q.name, true
      if gate.step > 0 then
        state.tat, state.moved = max(state.tat, now) + cost * gate.step, true
      end
    end
    for _, name in ipairs(more(r).gates or NOTHING) do
      add(q, name, cost)
    end
  end

  -- So many alike jobs run no longer.
  function give_back(r, n)
    local q = queue_of(r[QUEUE])
    for _, gate in ipairs(q.rule.whole or NOTHING) do
      if gate.step == 0 then
        local state = state_of(gate.name)
        state.changed, state.moved = true, true
      end
    end
    for _, name in ipairs(more(r).gates or NOTHING) do
      add(q, name, -n * cost_of(r))
    end
  end

  -- A gate that nothing uses leaves nothing behind.
  local function write_gate(name, state)
    local used, values = state.tat > now or state.whole and used_of(name) > 0, {}
    for queue, cost in pairs(state.by) do
      values['@' .. queue], used = cost > 0 and cost, used or cost > 0
    end
    if used then
      values.tat, values.queue = state.tat > 0 and state.tat or nil, state.queue ~= state.had and state.queue or nil
      write_hash(P .. 'g:' .. name, values)
    elseif state.stored then
      call('DEL', P .. 'g:' .. name)
    end
    order[(used or state.given) and 'add' or 'remove'](P .. 'gates', name)
    if state.tat > now then
      call('ZADD', P .. 'tats', state.tat, name)
    end
  end

  function write_gates()
    for state in every(states) do
      if state.changed then
        write_gate(state.name, state)
      end
    end
  end

  -- Delete rates whose theoretical arrival time has passed.
  function sweep_rates(limit)
    for _, name in ipairs(call('ZRANGE', P .. 'tats', '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
      call('ZREM', P .. 'tats', name)
      state_of(name).changed = true
    end
  end
end)()
