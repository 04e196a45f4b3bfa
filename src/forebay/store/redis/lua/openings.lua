-- When gates open, which lanes and queues that wakes, and what a call leaves written of lanes.
-- needs: lanes

local wake_gates, open_rates, write_lanes

(function()
  -- Gates with more room, and rates that moved on: wake the lanes parked there, and queues that they hold as a whole.
  function wake_gates()
    for state in every(states) do
      local name = state.name
      if state.moved then
        for _, queue in ipairs(call('SMEMBERS', P .. 'parks:' .. name)) do
          wake(queue_of(queue), name)
        end
        for _, queue in ipairs(call('SMEMBERS', P .. 'terms:' .. name)) do
          local q = queue_of(queue)
          q.opening, q.changed, has_work[queue] = true, true, true
        end
        state.moved = nil
      end
    end
  end

  -- Open the rates that are due.
  function open_rates(limit)
    for _, queue in ipairs(call('ZRANGE', P .. 'openings', '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
      local names = limit > 0 and call('ZRANGE', P .. 'opens:' .. queue, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit) or NOTHING
      for _, name in ipairs(names) do
        wake(queue_of(queue), name)
      end
      limit, has_work[queue] = limit - #names, true
    end
  end

  -- When the rates open that hold ready jobs of a queue: those of the whole queue too, for what goes first.
  local function write_openings(q)
    local _, cost = workable_at(q)
    for _, gate in ipairs(q.rule.whole or NOTHING) do
      if gate.step > 0 and cost and not is_open(gate, cost) then
        call('ZADD', P .. 'opens:' .. q.name, opens_at(gate, cost), gate.name)
      elseif gate.step > 0 then
        call('ZREM', P .. 'opens:' .. q.name, gate.name)
      end
    end
    local opens = first_score(P .. 'opens:' .. q.name)
    if opens and opens < MAX_INSTANT then
      call('ZADD', P .. 'openings', opens, q.name)
    else
      call('ZREM', P .. 'openings', q.name)
    end
  end

  -- Write lanes and classes. Queues whose jobs are all held notify no waiters.
  function write_lanes()
    for q in every(queues) do
      local places = {}
      for key, lane in pairs(q.at) do
        if lane.moved then
          places[key] = lane.place and pack({ place = lane.place, gate = lane.gate, turn = lane.turn }) or false
        end
      end
      write_hash(P .. 'at:' .. q.name, places)
      write_classes(q)
      if q.opening or q.changed and q.rule.whole then
        write_openings(q)
      end
      if has_work[q.name] and (q.rule.whole or q.lanes > 0) and workable_at(q) > now then
        has_work[q.name] = nil
      end
    end
    order.write_all()
  end
end)()
