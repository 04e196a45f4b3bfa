-- What changes gates for whole queues: another spec, room that was given, time that passed; and what a call writes of it.

local configure, spread_room, open_rates, write_lanes

(function()
  local IDLE_FORGOTTEN = 100

  local function is_same(one, other)
    if type(one) ~= 'table' or type(other) ~= 'table' then
      return one == other
    end
    for name, value in pairs(one) do
      if not is_same(value, other[name]) then
        return false
      end
    end
    for name in pairs(other) do
      if one[name] == nil then
        return false
      end
    end
    return true
  end

  -- The queue has another spec. If that changes its gates or shares, its running jobs are counted anew, turns begin again,
  -- and lanes open or park as they must.
  function configure(q, rule)
    local was, running, keys = q.rule, {}, call('HKEYS', P .. 'at:' .. q.name)
    if is_same({ was.whole or 0, was.terms or 0, was.weights or 0, was.default },
      { rule.whole or 0, rule.terms or 0, rule.weights or 0, rule.default }) then
      q.rule = rule
      return
    end
    local counts = was.whole or was.terms or rule.whole or rule.terms
    for _, blob in ipairs(counts and fetch(call('ZRANGE', P .. 'lease', 0, -1)) or NOTHING) do
      running[#running + 1] = record(blob)[QUEUE] == q.name and record(blob) or nil
    end
    for _, r in ipairs(running) do
      give_back(r, 1)
    end
    for _, gate in ipairs(was.whole or NOTHING) do
      call('SREM', P .. 'wholes:' .. gate.name, q.name)
    end
    for _, key in ipairs(keys) do
      put(q, lane_in(q, key), nil, nil)
    end
    for _, name in ipairs(call('ZRANGE', P .. 'opens:' .. q.name, 0, -1)) do
      wake(q, name)
    end
    order.write(P .. 'idle:' .. q.name)
    call('DEL', P .. 'turn:' .. q.name, P .. 'idle:' .. q.name)
    q.rule, q.turn, q.gates, q.turns, q.turned, news[q.name] = rule, START, {}, {}, {}, true
    for _, r in ipairs(running) do
      take(q, gates_of(q, r), cost_of(r), true)
    end
    for _, gate in ipairs(rule.whole or NOTHING) do
      call('SADD', P .. 'wholes:' .. gate.name, q.name)
    end
    stirred_lanes[q] = { [''] = (rule.terms or rule.default) and true or nil }
    for _, key in ipairs(keys) do
      stirred_lanes[q][key] = true
    end
  end

  -- Gates that were given room, or rates that moved on: what that means for the lanes parked there, and for queues that
  -- they hold as a whole.
  function spread_room()
    for name, state in pairs(states) do
      if state.moved then
        for _, queue in ipairs(call('SMEMBERS', P .. 'parks:' .. name)) do
          wake(queue_of(queue), name)
        end
        for _, queue in ipairs(call('SMEMBERS', P .. 'wholes:' .. name)) do
          local q = queue_of(queue)
          q.opening, q.changed, news[queue] = true, true, true
        end
        state.moved = nil
      end
    end
  end

  -- Rates whose time has come are open.
  function open_rates(limit)
    for _, queue in ipairs(call('ZRANGE', P .. 'openings', '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
      for _, name in ipairs(call('ZRANGE', P .. 'opens:' .. queue, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
        wake(queue_of(queue), name)
      end
      news[queue] = true
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
    if opens and opens < MOST then
      call('ZADD', P .. 'openings', opens, q.name)
    else
      call('ZREM', P .. 'openings', q.name)
    end
  end

  -- Fields of a hash: those that have a value, and those that are gone.
  local function write_hash(key, values)
    local kept, gone = {}, {}
    for field, value in pairs(values) do
      if value then
        kept[#kept + 1], kept[#kept + 2] = field, value
      else
        gone[#gone + 1] = field
      end
    end
    for i = 1, #kept, BATCH do
      call('HSET', key, unpack(kept, i, min(i + BATCH - 1, #kept)))
    end
    for i = 1, #gone, BATCH do
      call('HDEL', key, unpack(gone, i, min(i + BATCH - 1, #gone)))
    end
  end

  -- Classes without an open lane whose turns are behind the queue's are forgotten.
  local function forget_idle(q)
    local key, last = P .. 'idle:' .. q.name, '(' .. q.turn .. '\255'
    order.write(key)
    for _, member in ipairs(call('ZRANGE', key, '-', last, 'BYLEX', 'LIMIT', 0, IDLE_FORGOTTEN)) do
      q.turned[sub(member, 21)], q.turns[sub(member, 21)] = true, false
      order.remove(key, member)
    end
  end

  -- What is kept of lanes, and whose sleepers are woken: not those of queues whose jobs are all held.
  function write_lanes()
    for _, q in pairs(queues) do
      local places, turns = {}, {}
      for key, lane in pairs(q.at) do
        if lane.moved then
          places[key] = lane.place and pack({ place = lane.place, gate = lane.gate, turn = lane.turn }) or false
        end
      end
      if next(q.turned) then
        forget_idle(q)
      end
      for cls in pairs(q.turned) do
        turns[cls] = q.turns[cls]
      end
      write_hash(P .. 'at:' .. q.name, places)
      write_hash(P .. 'turn:' .. q.name, turns)
      if q.opening or q.changed and q.rule.whole then
        write_openings(q)
      end
      if news[q.name] and (q.rule.whole or q.lanes > 0) and workable_at(q) > now then
        news[q.name] = nil
      end
    end
    order.write_all()
  end
end)()
