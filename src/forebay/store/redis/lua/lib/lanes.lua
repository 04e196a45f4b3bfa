-- Which ready jobs a claim hands out: lanes, the gates they have to pass, and classes that take turns. The reference is
-- `forebay.engine.lanes`, whose functions these are, under the same names.
--
-- A lane has the ready jobs of a queue with the same class and the same gates; its key names both. An open lane is in the
-- set of its class, by its head; a lane whose head met a closed gate is parked at that gate, as a whole. The front of a
-- queue has the gates with room for the first lane parked there, which opens when a claim gets to it.

local LANES_MET, UNIT = 4000, 7207200
local lane_in, put, first, closed_gate, park, start, wake, refresh_lanes, workable_at

(function()
  local function cost_at(place)
    return cost_of(fetch_one(sub(place, 21)))
  end

  -- A lane by its key; it has no place if it has no ready jobs. `open_at`: it is known to be open, with this head.
  function lane_in(q, key, open_at)
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
    return P .. 'open:' .. q.name .. '|' .. (q.rule.default and cls or '')
  end

  local function known_turn(q, cls)
    if q.turns[cls] == nil then
      q.turns[cls] = call('HGET', P .. 'turn:' .. q.name, cls)
    end
    return q.turns[cls]
  end

  local function turn_of(q, cls)
    local turn = q.rule.default and known_turn(q, cls)
    return turn and turn > q.turn and turn or q.turn
  end

  -- A class has this turn. One without an open lane is known for as long as its turn is ahead of the queue's.
  local function set_turn(q, cls, turn, was_open, opens)
    local known = known_turn(q, cls)
    if known then
      order.remove(P .. (was_open and 'turns:' or 'idle:') .. q.name, known .. cls)
    end
    q.turns[cls], q.turned[cls] = (opens or turn > q.turn) and turn, true
    if q.turns[cls] then
      order.add(P .. (opens and 'turns:' or 'idle:') .. q.name, turn .. cls)
    end
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
    local was_open, opens = lane.place ~= nil and not lane.gate, place ~= nil and not gate
    local others = q.rule.default and was_open ~= opens
    if others and opens then
      others = not order.first(open_key(q, lane.cls))
    end
    if lane.place then
      index(q, lane, order.remove)
    end
    q.lanes = q.lanes + (place and 1 or 0) - (lane.place and 1 or 0)
    lane.turn = gate and (gate == lane.gate and lane.turn or turn_of(q, lane.cls)) or nil
    lane.place, lane.gate, lane.moved, q.changed = place, gate, true, true
    if place then
      index(q, lane, order.add)
    end
    if others and (opens or not order.first(open_key(q, lane.cls))) then
      set_turn(q, lane.cls, turn_of(q, lane.cls), was_open, opens)
    end
  end

  -- A gate where lanes of a queue are parked: in the front, if it has room for the first of them; else when that will be.
  function wake(q, name)
    q.holds = true
    local gate, place = gate_of(q, name), first_parked(q, name)
    local was, is = call('HGET', P .. 'rooms:' .. q.name, name), nil
    if place then
      local cost = cost_at(sub(place, 21))
      is = (not gate or is_open(gate, cost)) and place or nil
      call('ZADD', P .. 'opens:' .. q.name, not is and gate.step > 0 and opens_at(gate, cost) or MOST, name)
      call('SADD', P .. 'parks:' .. name, q.name)
    else
      call('ZREM', P .. 'opens:' .. q.name, name)
      call('SREM', P .. 'parks:' .. name, q.name)
    end
    if was and was ~= is then
      order.remove(P .. 'front:' .. q.name, was .. name)
      call('HDEL', P .. 'rooms:' .. q.name, name)
    end
    if is and was ~= is then
      order.add(P .. 'front:' .. q.name, is .. name)
      call('HSET', P .. 'rooms:' .. q.name, name, is)
      news[q.name] = true
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
    local share, tries, head = q.rule.default, LANES_MET, nil
    local key = share and P .. 'turns:' .. q.name or open_key(q, '')
    while true do
      local front = tries > 0 and order.first(P .. 'front:' .. q.name)
      head = order.first(key)
      local is_next = front and (only or not head or share and sub(front, 1, 20) <= sub(head, 1, 20)
        or not share and sub(front, 21, 56) < sub(head, 1, 36))
      if not is_next then
        break
      end
      open_parked(q, sub(front, 57))
      tries = tries - 1
    end
    if share then
      local cls = only or head and sub(head, 21)
      head = cls and order.first(open_key(q, cls))
    elseif only then
      order.write(key)
      for _, member in ipairs(call('ZRANGE', key, 0, LANES_MET)) do
        head = lane_in(q, sub(member, 37)).cls == only and member or nil
        if head then
          break
        end
      end
    end
    return head and lane_in(q, sub(head, 37), sub(head, 1, 36))
  end

  -- The head of the lane, a job of this record, starts; `place`: of the next one.
  function start(q, lane, r, place, only)
    take(q, gates_of(q, r), cost_of(r))
    if q.rule.default then
      local turn = turn_of(q, lane.cls)
      q.turn = only and q.turn or turn
      turn = shifted(turn, floor(UNIT / (q.rule.weights[lane.cls] or q.rule.default)))
      set_turn(q, lane.cls, turn, true, true)
    end
    put(q, lane, place, nil)
  end

  -- A lane whose jobs came or went by something other than a claim. A new one parks at once where a gate is closed.
  local function refresh(q, key)
    local lane, head = lane_in(q, key), streams.head(q, key)
    local gate, is_new = lane.gate, not lane.place
    if head == lane.place then
      return
    end
    local was_first = gate and is_first_parked(q, lane)
    put(q, lane, head, head and gate or nil)
    local closed = head and is_new and closed_gate(q, lane, cost_at(head))
    if closed then
      park(q, lane, closed)
    elseif gate and (was_first or head and is_first_parked(q, lane)) then
      wake(q, gate)
    end
  end

  function refresh_lanes()
    for q, keys in pairs(stirred_lanes) do
      for key in pairs(keys) do
        refresh(q, key)
      end
    end
    stirred_lanes = {}
  end

  -- When a claim may find a job of the queue if nothing happens: at once (0), when a rate opens, or never. And the cost of
  -- the job that goes first, as far as its lanes know.
  function workable_at(q)
    local place = q[READY] > 0 and q.lanes == 0 and streams.head(q, '')
    if q.lanes > 0 then
      local head = q.rule.default and order.first(P .. 'turns:' .. q.name)
      local open, front = order.first(open_key(q, head and sub(head, 21) or '')), order.first(P .. 'front:' .. q.name)
      place = open and sub(open, 1, 36) or front and sub(front, 21, 56)
    end
    local cost = place and cost_at(place)
    if cost and not closed_of(q.rule.whole, cost) then
      return 0, cost
    end
    return first_score(P .. 'opens:' .. q.name) or MOST, cost
  end
end)()
