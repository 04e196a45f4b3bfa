-- Gates: what running jobs use of them, the arithmetic of `core.gate`, and when the rates open that hold jobs. The numbers
-- of a gate are those of the queue's spec now, or the operator's. A call reads a gate once and writes it in the end.

local states = {}
local cost_of, gate_of, gates_of, state_of, opens_at, is_open, room_of, closed_of, take, give_back, write_gates, sweep_rates

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

  -- What running jobs use of a gate, its theoretical arrival time, the queue that used it last, the operator's number.
  function state_of(name)
    local state = states[name]
    if not state then
      local f = call('HMGET', P .. 'g:' .. name, 'used', 'tat', 'queue')
      if any_given == nil then
        any_given = call('EXISTS', P .. 'limits') == 1
      end
      state = { used = tonumber(f[1] or 0), tat = tonumber(f[2] or 0), queue = f[3] or nil, stored = f[1] }
      state.given = any_given and tonumber(call('HGET', P .. 'limits', name)) or nil
      states[name] = state
    end
    return state
  end

  -- When a rate admits a job of this cost.
  function opens_at(gate, cost)
    local state = state_of(gate.name)
    local limit = state.given or gate.limit
    return limit > 0 and state.tat - (limit - min(cost, limit)) * gate.step or MOST
  end

  function is_open(gate, cost)
    if gate.step > 0 then
      return opens_at(gate, cost) <= now
    end
    local state = state_of(gate.name)
    local slots = state.given or gate.limit
    return state.used + min(cost, max(slots, 1)) <= slots
  end

  -- How many jobs of cost 1 a gate has room for.
  function room_of(gate)
    local state = state_of(gate.name)
    local slots = state.given or gate.limit
    return slots - (gate.step > 0 and math.ceil(max(state.tat - now, 0) / gate.step) or state.used)
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

  -- A job of this cost starts; `runs`: it did before, so that rates are paid.
  function take(q, gates, cost, runs)
    for _, gate in ipairs(gates) do
      local state = state_of(gate.name)
      if gate.step == 0 then
        state.used = state.used + cost
      elseif not runs then
        state.tat, state.moved = max(state.tat, now) + cost * gate.step, true
      end
      state.changed, state.queue = true, q.name
    end
  end

  -- So many alike jobs run no longer.
  function give_back(r, n)
    local q = queue_of(r[QUEUE])
    for _, gate in ipairs((q.rule.whole or q.rule.terms) and gates_of(q, r) or NOTHING) do
      if gate.step == 0 then
        local state = state_of(gate.name)
        state.used, state.changed, state.moved = max(0, state.used - n * cost_of(r)), true, true
      end
    end
  end

  -- A gate that nothing uses leaves nothing behind.
  function write_gates()
    for name, state in pairs(states) do
      local used = state.used > 0 or state.tat > now
      if state.changed and used then
        call('HSET', P .. 'g:' .. name, 'used', state.used, 'tat', state.tat, 'queue', state.queue)
      elseif state.changed and state.stored then
        call('DEL', P .. 'g:' .. name)
      end
      if state.changed then
        order[(used or state.given) and 'add' or 'remove'](P .. 'gates', name)
      end
      if state.changed and state.tat > now then
        call('ZADD', P .. 'tats', state.tat, name)
      end
    end
  end

  -- Rates whose starts are all paid for are forgotten.
  function sweep_rates(limit)
    for _, name in ipairs(call('ZRANGE', P .. 'tats', '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
      call('ZREM', P .. 'tats', name)
      state_of(name).changed = true
    end
  end
end)()
