-- Which ready jobs a claim hands out: lanes, and the gates they have to pass. The reference is `forebay.engine.lanes`, whose
-- functions these are, under the same names.
--
-- A lane has the ready jobs of a queue with the same class and the same gates; its key names both. An open lane is in the
-- set of its class, by its head; a lane whose head is at a closed gate is parked there, as a whole. The front of a
-- queue has the gates with room for the first lane parked there, which opens when a claim gets to it. Where a lane is does
-- not depend on the queue's spec, which decides when its head is examined: so a new spec takes effect at once, and lanes
-- that it opens or whose turns it ends are moved some at a time.
-- needs: shares

local LANES_MET, LANES_REVIEWED = 4000, 200
local first, closed_gate, park, start, wake, refresh, configure, review, workable_at

(function()
  local function cost_at(place)
    return cost_of(fetch_one(sub(place, SID_IN_PLACE)))
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
    return lane
  end

  -- The first lane parked at a gate: the turn of its class then and the place of its head, and its key.
  local function first_parked(q, name)
    q.holds = q.holds == nil and call('EXISTS', P .. 'opens:' .. q.name) == 1 or q.holds
    local member = q.holds and order.first(P .. 'parked:' .. q.name .. '|' .. name)
    if member then
      return sub(member, 1, PARKED_END), sub(member, AFTER_PARKED)
    end
  end

  -- Whether it is the first lane parked at its gate.
  local function is_first(q, lane)
    local _, key = first_parked(q, lane.gate)
    return key == lane.key
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
  local function put(q, lane, place, gate)
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
    q.holds, q.opening, q.changed = true, true, true
    local gate, place = gate_of(q, name), first_parked(q, name)
    local cost = place and cost_at(sub(place, SID_IN_PLACE))
    local was = call('HGET', P .. 'front_places:' .. q.name, name)
    local is = place and (not gate or is_open(gate, cost)) and place or false
    if place then
      call('ZADD', P .. 'opens:' .. q.name, not is and gate.step > 0 and opens_at(gate, cost) or MAX_INSTANT, name)
    else
      call('ZREM', P .. 'opens:' .. q.name, name)
    end
    call(place and 'SADD' or 'SREM', P .. 'parks:' .. name, q.name)
    if was and was ~= is then
      order.remove(P .. 'front:' .. q.name, was .. name)
    end
    if is and was ~= is then
      order.add(P .. 'front:' .. q.name, is .. name)
      has_work[q.name] = true
    end
    if was ~= is then
      write_hash(P .. 'front_places:' .. q.name, { [name] = is })
    end
  end

  -- The first gate of a lane without room for its head, or at which an earlier head of the queue waits for room.
  function closed_gate(q, lane, cost)
    for _, name in ipairs(lane.names) do
      local gate = gate_of(q, name)
      local place = gate and first_parked(q, name)
      local is_later = place and place < turn_of(q, lane.cls) .. lane.place
      if gate and (not is_open(gate, cost) or is_later and not is_open(gate, cost_at(sub(place, SID_IN_PLACE)))) then
        return gate
      end
    end
    return nil
  end

  function park(q, lane, gate)
    q.holds = true
    put(q, lane, lane.place, gate.name)
    if is_first(q, lane) then
      wake(q, gate.name)
    end
  end

  -- The first lane that is parked at a gate of the front opens, if there is room for it still.
  local function open(q, name)
    local gate, place, key = gate_of(q, name), first_parked(q, name)
    if place and (not gate or is_open(gate, cost_at(sub(place, SID_IN_PLACE)))) then
      put(q, lane_in(q, key), sub(place, SID_IN_PLACE), nil)
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
      open(q, sub(front, AFTER_PARKED))
    end
    local cls = only or head and sub(head, AFTER_PARKED)
    head = cls and order.first(open_key(q, cls))
    return head and lane_in(q, sub(head, AFTER_PLACE), sub(head, 1, PLACE_END))
  end

  -- The head of the lane, a job of this record, starts; `place`: of the next one.
  function start(q, lane, r, place, only)
    use_gates(q, r)
    if q.rule.default then
      advance_class(q, lane.cls, not only)
    end
    put(q, lane, place, nil)
  end

  -- The lane has this head now; one that was nowhere parks at once where a gate is closed.
  local function meet(q, lane, head)
    local gate, is_new = lane.gate, not lane.place
    local was_first = gate and is_first(q, lane)
    put(q, lane, head, head and gate or nil)
    local closed = head and is_new and closed_gate(q, lane, cost_at(head))
    if closed then
      park(q, lane, closed)
    elseif gate and (was_first or head and is_first(q, lane)) then
      wake(q, gate)
    end
  end

  -- Lanes whose jobs were changed by something other than a claim.
  function refresh()
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

  -- The queue has other gates or shares: turns begin again, and lanes are examined from the first one on.
  function configure(q, rule)
    for _, gate in ipairs(q.rule.whole or NOTHING) do
      call('ZREM', P .. 'opens:' .. q.name, gate.name)
    end
    change_terms(q, q.rule, 'SREM')
    change_terms(q, rule, 'SADD')
    restart_turns(q)
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
      place = head and sub(head, AFTER_TURN, PARKED_END)
    end
    local cost = place and cost_at(place)
    if q.scan or cost and not closed_of(q.rule.whole, cost) then
      return 0, cost
    end
    return first_score(P .. 'opens:' .. q.name) or MAX_INSTANT, cost
  end
end)()
