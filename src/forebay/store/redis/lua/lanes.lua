-- Which ready jobs a claim hands out: lanes, the gates they have to pass, and classes that take turns. The reference is
-- `forebay.engine.lanes`, whose functions these are, under the same names.
--
-- A lane has the ready jobs of a queue with the same class and the same gates; its key names both. An open lane is in the
-- set of its class, by its head; a lane whose head is at a closed gate is parked there, as a whole. The front of a
-- queue has the gates with room for the first lane parked there, which opens when a claim gets to it. Where a lane is does
-- not depend on the queue's spec, which decides when its head is examined: so a new spec takes effect at once, and lanes
-- that it opens or whose turns it ends are moved some at a time.
-- needs: gates

local LANES_MET, LANES_REVIEWED, IDLE_CLASSES, UNIT = 4000, 200, 256, 7207200
local put, first, closed_gate, park, start, wake, refresh_lanes, configure, review, workable_at, write_classes

(function()
  local function cost_at(place)
    return cost_of(fetch_one(sub(place, 21)))
  end

  -- A lane by its key; it has no place if it has no ready jobs. `open_at`: it is known to be open, with this head.
  local function lane_in(q, key, open_at)
    local lane = q.at[key]
    if not lane then
      local known = not open_at and call('HGET', P .. 'at:' .. q.name, key)
      local names = sub(key, 1, 1) == '[' and cjson.decode(key) or { key }
      lane = known and decode(known) or { place = open_at }
      lane.key, lane.cls, lane.names = key, table.remove(names, 1), names
      q.at[key] = lane
    end
    if lane.rule ~= q.rule then
      lane.rule, lane.gates = q.rule, {}
      for _, name in ipairs(lane.names) do
        lane.gates[#lane.gates + 1] = gate_of(q, name) or nil
      end
    end
    return lane
  end

  local function open_key(q, cls)
    return P .. 'open:' .. q.name .. '|' .. cls
  end

  -- A class: its turn, and where it is: its turn and the head of its first open lane, or the turn alone if it has none.
  local function class_of(q, name)
    local cls = q.classes[name]
    if not cls then
      local at = call('HGET', P .. 'turn:' .. q.name, name) or nil
      cls = { turn = at and sub(at, 1, 20) or START, at = at }
      q.classes[name] = cls
    end
    return cls
  end

  local function turn_of(q, name)
    local turn = class_of(q, name).turn
    return turn > q.turn and turn or q.turn
  end

  -- The class is where its turn and its open lanes say. One without any is known while its turn is ahead of the queue's.
  local function place_class(q, name)
    local cls, head, turn = class_of(q, name), order.first(open_key(q, name)), turn_of(q, name)
    local at = head and turn .. sub(head, 1, 36) or turn > q.turn and turn or nil
    cls.turn = turn
    if at == cls.at then
      return
    end
    if cls.at then
      order.remove(P .. (#cls.at > 20 and 'turns:' or 'idle:') .. q.name, cls.at .. name)
    end
    if at then
      order.add(P .. (head and 'turns:' or 'idle:') .. q.name, at .. name)
    end
    cls.at, cls.moved = at, true
  end

  -- The first lane parked at a gate: the turn of its class then and the place of its head, and its key.
  local function first_parked(q, name)
    q.holds = q.holds == nil and call('EXISTS', P .. 'opens:' .. q.name) == 1 or q.holds
    local member = q.holds and order.first(P .. 'parked:' .. q.name .. '|' .. name)
    if member then
      return sub(member, 1, 56), sub(member, 57)
    end
  end

  -- The lane is found where it is now, or no longer.
  local function index(q, lane, change)
    if lane.gate then
      change(P .. 'parked:' .. q.name .. '|' .. lane.gate, lane.turn .. lane.place .. lane.key)
    else
      change(open_key(q, lane.cls), lane.place .. lane.key)
    end
    for _, name in ipairs(lane.names) do
      if sub(name, 1, 6) == 'until/' then
        change(P .. 'lanes:' .. name, lane.place .. q.name .. '|' .. lane.key)
      end
    end
  end

  -- The lane has this head and is parked at this gate, or open; without a head it is nowhere.
  function put(q, lane, place, gate)
    if lane.place then
      index(q, lane, order.remove)
    end
    q.lanes = q.lanes + (place and 1 or 0) - (lane.place and 1 or 0)
    lane.turn = gate and (gate == lane.gate and lane.turn or turn_of(q, lane.cls)) or nil
    lane.place, lane.gate, lane.moved, q.changed = place, gate, true, true
    if place then
      index(q, lane, order.add)
    end
    place_class(q, lane.cls)
  end

  -- A gate where lanes of a queue are parked: in the front, if it has room for the first of them; else when that will be.
  function wake(q, name)
    q.holds = true
    local gate, place = gate_of(q, name), first_parked(q, name)
    local was, is = call('HGET', P .. 'front_places:' .. q.name, name), nil
    if place then
      local cost = cost_at(sub(place, 21))
      is = (not gate or is_open(gate, cost)) and place or nil
      call('ZADD', P .. 'opens:' .. q.name, not is and gate.step > 0 and opens_at(gate, cost) or MAX_INSTANT, name)
      call('SADD', P .. 'parks:' .. name, q.name)
    else
      call('ZREM', P .. 'opens:' .. q.name, name)
      call('SREM', P .. 'parks:' .. name, q.name)
    end
    if was and was ~= is then
      order.remove(P .. 'front:' .. q.name, was .. name)
      call('HDEL', P .. 'front_places:' .. q.name, name)
    end
    if is and was ~= is then
      order.add(P .. 'front:' .. q.name, is .. name)
      call('HSET', P .. 'front_places:' .. q.name, name, is)
      has_work[q.name] = true
    end
    q.opening, q.changed = true, true
  end

  -- The first gate of a lane without room for its head, or at which an earlier head of the queue waits for room.
  function closed_gate(q, lane, cost)
    for _, gate in ipairs(lane.gates) do
      local place = first_parked(q, gate.name)
      local is_later = place and place < turn_of(q, lane.cls) .. lane.place
      if not is_open(gate, cost) or is_later and not is_open(gate, cost_at(sub(place, 21))) then
        return gate
      end
    end
    return nil
  end

  local function is_first_parked(q, lane)
    local _, key = first_parked(q, lane.gate)
    return key == lane.key
  end

  function park(q, lane, gate)
    q.holds = true
    put(q, lane, lane.place, gate.name)
    if is_first_parked(q, lane) then
      wake(q, gate.name)
    end
  end

  -- The first lane that is parked at a gate of the front opens, if there is room for it still.
  local function open_parked(q, name)
    local gate, place, key = gate_of(q, name), first_parked(q, name)
    if place and (not gate or is_open(gate, cost_at(sub(place, 21)))) then
      put(q, lane_in(q, key), sub(place, 21), nil)
    end
    wake(q, name)
  end

  -- The open lane whose head is next, of one class if it is named; lanes parked at gates with room open on the way.
  function first(q, only)
    local head
    for _ = 0, LANES_MET do
      local front = order.first(P .. 'front:' .. q.name)
      head = order.first(P .. 'turns:' .. q.name)
      if not front or head and not only and head < front then
        break
      end
      open_parked(q, sub(front, 57))
    end
    local cls = only or head and sub(head, 57)
    head = cls and order.first(open_key(q, cls))
    return head and lane_in(q, sub(head, 37), sub(head, 1, 36))
  end

  -- The head of the lane, a job of this record, starts; `place`: of the next one.
  function start(q, lane, r, place, only)
    take(q, r)
    if q.rule.default then
      local cls, turn = class_of(q, lane.cls), turn_of(q, lane.cls)
      q.turn = only and q.turn or turn
      cls.turn = shifted(turn, floor(UNIT / (q.rule.weights[lane.cls] or q.rule.default)))
    end
    put(q, lane, place, nil)
  end

  -- The lane has this head now; one that was nowhere parks at once where a gate is closed.
  local function meet(q, lane, head)
    local gate, is_new = lane.gate, not lane.place
    local was_first = gate and is_first_parked(q, lane)
    put(q, lane, head, head and gate or nil)
    local closed = head and is_new and closed_gate(q, lane, cost_at(head))
    if closed then
      park(q, lane, closed)
    elseif gate and (was_first or head and is_first_parked(q, lane)) then
      wake(q, gate)
    end
  end

  -- Lanes whose jobs were changed by something other than a claim.
  function refresh_lanes()
    for q, keys in pairs(touched_lanes) do
      for key in pairs(keys) do
        local lane, head = lane_in(q, key), streams.head(q, key)
        if head ~= lane.place then
          meet(q, lane, head)
        end
      end
    end
    touched_lanes = {}
  end

  -- Examine some of the lanes that are placed by an earlier spec.
  function review(q)
    local found = call('HSCAN', P .. 'at:' .. q.name, q.scan, 'COUNT', LANES_REVIEWED)
    for i = 1, #found[2], 2 do
      local lane = lane_in(q, found[2][i])
      local head = lane.place
      if head then
        meet(q, lane, nil)
        meet(q, lane, head)
      end
    end
    q.scan = found[1] ~= '0' and found[1] or nil
  end

  -- The queue is one of those whose specs have these terms, or no longer: what runs counts at other gates by that.
  local function change_terms(q, rule, command)
    for _, gate in ipairs(rule.whole or NOTHING) do
      call(command, P .. 'terms:' .. gate.name, q.name)
      local state = state_of(gate.name)
      state.queue, state.changed, state.moved = state.queue or q.name, true, true
    end
    for _, term in ipairs(rule.terms or NOTHING) do
      call(command, P .. 'terms:' .. term.name, q.name)
      for _, queue in ipairs(call('SMEMBERS', P .. 'terms:' .. term.name)) do
        local other = queue_of(queue)
        other.scan, other.changed, has_work[queue] = '0', true, true
      end
    end
  end

  -- The queue has other gates or shares: turns begin again, from the last one on.
  function configure(q, rule)
    for _, gate in ipairs(q.rule.whole or NOTHING) do
      call('ZREM', P .. 'opens:' .. q.name, gate.name)
    end
    change_terms(q, q.rule, 'SREM')
    change_terms(q, rule, 'SADD')
    for _, key in ipairs({ 'turns:', 'idle:' }) do
      local last = call('ZRANGE', P .. key .. q.name, 0, 0, 'REV')[1]
      q.turn = last and sub(last, 1, 20) > q.turn and sub(last, 1, 20) or q.turn
    end
    q.rule, q.gates, q.scan, q.opening, has_work[q.name] = rule, {}, '0', true, true
    touched_lanes[q] = { [''] = (rule.terms or rule.default) and true or nil }
    review(q)
  end

  -- When a claim may find a job of the queue if nothing happens: at once (0), when a rate opens, or never. And the cost of
  -- the job that goes first, as far as its lanes know.
  function workable_at(q)
    local place = q[READY] > 0 and q.lanes == 0 and streams.head(q, '')
    if q.lanes > 0 then
      local head = order.first(P .. 'turns:' .. q.name) or order.first(P .. 'front:' .. q.name)
      place = head and sub(head, 21, 56)
    end
    local cost = place and cost_at(place)
    if q.scan or cost and not closed_of(q.rule.whole, cost) then
      return 0, cost
    end
    return first_score(P .. 'opens:' .. q.name) or MAX_INSTANT, cost
  end

  -- Classes that moved; of idle ones some are known, and one that is forgotten gains a single start.
  function write_classes(q)
    local values = {}
    for name, cls in pairs(q.classes) do
      if cls.moved then
        values[name] = cls.at or false
      end
    end
    if next(values) then
      local key = P .. 'idle:' .. q.name
      order.write(key)
      local excess = call('ZCARD', key) - IDLE_CLASSES
      for i, member in ipairs(excess > 0 and call('ZPOPMIN', key, min(excess, BATCH)) or NOTHING) do
        if i % 2 == 1 then
          values[sub(member, 21)] = false
        end
      end
    end
    write_hash(P .. 'turn:' .. q.name, values)
  end
end)()


local wake_gates, open_rates, write_lanes

(function()
  -- Gates with more room, and rates that moved on: wake the lanes parked there, and queues that they hold as a whole.
  function wake_gates()
    for name, state in pairs(states) do
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
    for _, q in pairs(queues) do
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
