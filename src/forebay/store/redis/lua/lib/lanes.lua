-- Which ready jobs a claim hands out: lanes, the gates they have to pass, and classes that take turns. The reference is
-- `forebay.engine.lanes`, whose functions these are, under the same names.
--
-- A lane has the ready jobs of a queue with the same class and the same gates. An open lane is in the set of its class,
-- by its head; a lane whose head met a closed gate is parked at that gate, as a whole. The front of a queue has the gates
-- that have room for the first lane parked there: that lane opens when a claim gets to it. The numbers of a gate are
-- those of the queue's spec now, or the operator's.
--
-- at:<queue> has for each lane the place of its head and, if it is parked, the gate and the turn that its class had then.

local LANES_MET, UNIT = 4000, 7207200
local states = {}
local cost_of, gate_of, gates_of, state_of, opens_at, is_open, room_of, closed_of, take, give_back, head_of, ahead, lane_in, first,
  workable_at, closed_gate, park, start, wake, configure, refresh_lanes, spread_room, open_rates, write_gates, sweep_rates

(function()
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

  -- The gates that a job of the queue has to pass: those of the whole queue if it is said, and those of its lane.
  function gates_of(q, r, whole)
    local gates = {}
    for _, gate in ipairs(whole and q.rule.whole or NOTHING) do
      gates[#gates + 1] = gate
    end
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
      state = { used = tonumber(f[1] or 0), tat = tonumber(f[2] or 0), queue = f[3] or nil }
      state.given = tonumber(call('HGET', P .. 'limits', name))
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

  -- A job of this cost starts; `recount`: it runs already, so that rates are paid.
  function take(q, gates, cost, recount)
    for _, gate in ipairs(gates) do
      local state = state_of(gate.name)
      if gate.step == 0 then
        state.used = state.used + cost
      elseif not recount then
        state.tat, state.spread = max(state.tat, now) + cost * gate.step, true
      end
      state.changed, state.queue = true, q.name
    end
  end

  -- So many alike jobs run no longer.
  function give_back(r, n)
    local q = queue_of(r[QUEUE])
    if not (q.rule.whole or q.rule.terms) then
      return
    end
    for _, gate in ipairs(gates_of(q, r, true)) do
      if gate.step == 0 then
        local state = state_of(gate.name)
        state.used, state.changed, state.spread = max(0, state.used - n * cost_of(r)), true, true
      end
    end
  end

  -- The place of the first job of a lane.
  function head_of(q, key)
    local place = call('ZRANGE', P .. 'r:' .. q.name .. '|' .. key, 0, 0)[1]
    local entry = key == '' and q.streamed > 0 and streams.unread(q, 1)[1]
    local flowing = entry and streams.place(entry)
    return (not flowing or place and place < flowing) and place or flowing or nil
  end

  local function cost_at(place)
    return cost_of(fetch_one(sub(place, 21)))
  end

  -- How many ready jobs of its lane go before a ready job; of a stream so many are counted at most.
  function ahead(sid, r, most)
    local key, place, q = P .. 'r:' .. r[QUEUE] .. '|' .. lane_of(r), r[RANK] .. sid, queue_of(r[QUEUE])
    local before = call('ZLEXCOUNT', key, '-', '(' .. place)
    if is_unread(r) then
      return before + #streams.unread(q, most, entry_id(sid, r[MORE].flow))
    end
    for _, entry in ipairs(lane_of(r) == '' and q.streamed > 0 and streams.unread(q, most) or NOTHING) do
      before = before + (streams.place(entry) < place and 1 or 0)
    end
    return before
  end

  -- A lane by its key, which names its class and its gates; it has no place if it has no ready jobs.
  function lane_in(q, key)
    local lane = q.at[key]
    if not lane then
      local known = call('HGET', P .. 'at:' .. q.name, key)
      local names = sub(key, 1, 1) == '[' and cjson.decode(key) or { key }
      lane = known and decode(known) or {}
      lane.key, lane.cls, lane.names, lane.gates = key, table.remove(names, 1), names, {}
      for _, name in ipairs(names) do
        lane.gates[#lane.gates + 1] = gate_of(q, name) or nil
      end
      q.at[key] = lane
    end
    return lane
  end

  local function open_key(q, cls)
    return P .. 'open:' .. q.name .. '|' .. (q.rule.default and cls or '')
  end

  local function turn_of(q, cls)
    local turn = q.rule.default and call('HGET', P .. 'turn:' .. q.name, cls)
    return turn and turn > q.turn and turn or q.turn
  end

  -- A class has this turn. One that has no open lane is known for as long as its turn is ahead of the queue's.
  local function set_turn(q, cls, turn, open)
    local was = call('HGET', P .. 'turn:' .. q.name, cls)
    if was then
      call('ZREM', P .. 'turns:' .. q.name, was .. cls)
      call('ZREM', P .. 'idle:' .. q.name, was .. cls)
    end
    if open or turn > q.turn then
      call('HSET', P .. 'turn:' .. q.name, cls, turn)
      call('ZADD', P .. (open and 'turns:' or 'idle:') .. q.name, 0, turn .. cls)
    elseif was then
      call('HDEL', P .. 'turn:' .. q.name, cls)
    end
  end

  -- Where a lane is found, and under what member.
  local function index_of(q, lane)
    if lane.gate then
      return P .. 'parked:' .. q.name .. '|' .. lane.gate, lane.turn .. lane.place .. lane.key
    end
    return open_key(q, lane.cls), lane.place .. lane.key
  end

  -- Lanes behind a condition are found by it as well, for `release`.
  local function index_until(q, lane, command, ...)
    for _, name in ipairs(lane.names) do
      if sub(name, 1, 6) == 'until/' then
        local arguments = { ... }
        arguments[#arguments + 1] = lane.place .. q.name .. '|' .. lane.key
        call(command, P .. 'lanes:' .. name, unpack(arguments))
      end
    end
  end

  -- The lane has this head and is parked at this gate, or open; without a head it is nowhere.
  local function put(q, lane, place, gate)
    local was_open, opens = lane.place ~= nil and not lane.gate, place ~= nil and not gate
    if lane.place then
      call('ZREM', index_of(q, lane))
      index_until(q, lane, 'ZREM')
    end
    q.lanes = q.lanes + (place and 1 or 0) - (lane.place and 1 or 0)
    lane.turn = gate and (gate == lane.gate and lane.turn or turn_of(q, lane.cls)) or nil
    lane.place, lane.gate, q.changed = place, gate, true
    if place then
      local key, member = index_of(q, lane)
      call('ZADD', key, 0, member)
      index_until(q, lane, 'ZADD', 0)
      call('HSET', P .. 'at:' .. q.name, lane.key, pack({ place = place, gate = gate, turn = lane.turn }))
    else
      call('HDEL', P .. 'at:' .. q.name, lane.key)
    end
    if q.rule.default and was_open ~= opens and call('ZCARD', open_key(q, lane.cls)) == (opens and 1 or 0) then
      set_turn(q, lane.cls, turn_of(q, lane.cls), opens)
    end
  end

  -- Gates of a queue where lanes are parked: in the front, if there is room for the first one; else when that will be.
  function wake(q, name)
    local gate, member = gate_of(q, name), call('ZRANGE', P .. 'parked:' .. q.name .. '|' .. name, 0, 0)[1]
    local was, is, opens = call('HGET', P .. 'rooms:' .. q.name, name), nil, MOST
    if member then
      local cost = cost_at(sub(member, 21, 56))
      if not gate or is_open(gate, cost) then
        is = sub(member, 1, 56)
      elseif gate.step > 0 then
        opens = opens_at(gate, cost)
      end
      call('ZADD', P .. 'opens:' .. q.name, opens, name)
      call('SADD', P .. 'parks:' .. name, q.name)
    else
      call('ZREM', P .. 'opens:' .. q.name, name)
      call('SREM', P .. 'parks:' .. name, q.name)
    end
    if was and was ~= is then
      call('ZREM', P .. 'front:' .. q.name, was .. name)
      call('HDEL', P .. 'rooms:' .. q.name, name)
    end
    if is and was ~= is then
      call('ZADD', P .. 'front:' .. q.name, 0, is .. name)
      call('HSET', P .. 'rooms:' .. q.name, name, is)
      news[q.name] = true
    end
    q.opening, q.changed = true, true
  end

  -- The first gate of a lane without room for its head, or at which an earlier head of the queue waits for room.
  function closed_gate(q, lane, cost)
    for _, gate in ipairs(lane.gates) do
      if not is_open(gate, cost) then
        return gate
      end
      local member = call('ZRANGE', P .. 'parked:' .. q.name .. '|' .. gate.name, 0, 0)[1]
      if member and sub(member, 1, 56) < turn_of(q, lane.cls) .. lane.place
        and not is_open(gate, cost_at(sub(member, 21, 56))) then
        return gate
      end
    end
    return nil
  end

  function park(q, lane, gate)
    put(q, lane, lane.place, gate.name)
    wake(q, gate.name)
  end

  -- The lane at the head of the front is open again.
  local function open_next(q, member)
    local name = sub(member, 57)
    local parked = call('ZRANGE', P .. 'parked:' .. q.name .. '|' .. name, 0, 0)[1]
    local gate = gate_of(q, name)
    if parked and (not gate or is_open(gate, cost_at(sub(parked, 21, 56)))) then
      local lane = lane_in(q, sub(parked, 57))
      put(q, lane, lane.place, nil)
    end
    wake(q, name)
  end

  -- The open lane whose head is next, of one class if it is named; lanes parked at gates with room open on the way.
  function first(q, only)
    local share, tries = q.rule.default, LANES_MET
    while true do
      local head = call('ZRANGE', share and P .. 'turns:' .. q.name or open_key(q, ''), 0, 0)[1]
      local roomy = tries > 0 and call('ZRANGE', P .. 'front:' .. q.name, 0, 0)[1]
      local from, to = share and 1 or 21, share and 20 or 56
      if not roomy or head and not only and sub(roomy, from, to) > sub(head, 1, to - from + 1) then
        break
      end
      open_next(q, roomy)
      tries = tries - 1
    end
    local cls = share and (only or sub(call('ZRANGE', P .. 'turns:' .. q.name, 0, 0)[1] or '', 21)) or ''
    for _, member in ipairs(call('ZRANGE', open_key(q, cls), 0, share and 0 or only and LANES_MET or 0)) do
      local lane = lane_in(q, sub(member, 37))
      if not only or lane.cls == only then
        return lane
      end
    end
    return nil
  end

  -- The head of the lane, a job of this record, starts; it has left the lane's set.
  function start(q, lane, r, only)
    take(q, gates_of(q, r, true), cost_of(r))
    if q.rule.default then
      local turn = turn_of(q, lane.cls)
      q.turn = only and q.turn or turn
      set_turn(q, lane.cls, shifted(turn, floor(UNIT / (q.rule.weights[lane.cls] or q.rule.default))), true)
      for _, member in ipairs(call('ZRANGE', P .. 'idle:' .. q.name, '-', '(' .. q.turn .. '\255', 'BYLEX', 'LIMIT', 0, 2)) do
        call('ZREM', P .. 'idle:' .. q.name, member)
        call('HDEL', P .. 'turn:' .. q.name, sub(member, 21))
      end
    end
    put(q, lane, head_of(q, lane.key), nil)
  end

  -- A lane whose jobs came or went by something other than a claim. A new one parks at once where a gate is closed.
  local function refresh(q, key)
    local lane, head = lane_in(q, key), head_of(q, key)
    local gate, is_new = lane.gate, not lane.place
    if head == lane.place then
      return
    end
    put(q, lane, head, head and gate or nil)
    local closed = head and is_new and closed_gate(q, lane, cost_at(head))
    if closed then
      park(q, lane, closed)
    elseif gate then
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

  -- The place of the job that goes first in the queue, as far as its lanes know.
  local function next_place(q)
    if q.lanes == 0 then
      return head_of(q, '')
    end
    local cls = q.rule.default and sub(call('ZRANGE', P .. 'turns:' .. q.name, 0, 0)[1] or '', 21) or ''
    local open, roomy = call('ZRANGE', open_key(q, cls), 0, 0)[1], call('ZRANGE', P .. 'front:' .. q.name, 0, 0)[1]
    return open and sub(open, 1, 36) or roomy and sub(roomy, 21, 56)
  end

  -- When a claim may find a job of the queue if nothing happens: at once (0), when a rate opens, or never.
  function workable_at(q)
    local place = q[READY] > 0 and next_place(q)
    if place and not closed_of(q.rule.whole, cost_at(place)) then
      return 0
    end
    return first_score(P .. 'opens:' .. q.name) or MOST
  end

  -- The queue has another spec: its running jobs are counted anew, turns begin again, lanes open or park as they must.
  function configure(q, rule)
    local running, cost, keys = {}, 0, call('HKEYS', P .. 'at:' .. q.name)
    if q.rule.whole or q.rule.terms or rule.whole or rule.terms then
      for _, blob in ipairs(fetch(call('ZRANGE', P .. 'lease', 0, -1))) do
        running[#running + 1] = record(blob)[QUEUE] == q.name and record(blob) or nil
      end
    end
    for _, r in ipairs(running) do
      give_back(r, 1)
    end
    for _, gate in ipairs(q.rule.whole or NOTHING) do
      call('SREM', P .. 'wholes:' .. gate.name, q.name)
    end
    for _, key in ipairs(keys) do
      put(q, lane_in(q, key), nil, nil)
    end
    for _, name in ipairs(call('ZRANGE', P .. 'opens:' .. q.name, 0, -1)) do
      wake(q, name)
    end
    call('DEL', P .. 'turn:' .. q.name, P .. 'idle:' .. q.name)
    q.rule, q.turn, q.at, q.gates, news[q.name] = rule, START, {}, {}, true
    for _, r in ipairs(running) do
      take(q, gates_of(q, r, true), cost_of(r), true)
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
      if state.spread then
        state.spread = nil
        for _, queue in ipairs(call('SMEMBERS', P .. 'parks:' .. name)) do
          wake(queue_of(queue), name)
        end
        for _, queue in ipairs(call('SMEMBERS', P .. 'wholes:' .. name)) do
          local q = queue_of(queue)
          q.opening, q.changed = true, true
          news[queue] = news[queue] or q[READY] > 0 or nil
        end
      end
    end
  end

  -- Rates whose time has come are open.
  function open_rates(limit)
    for _, queue in ipairs(call('ZRANGE', P .. 'openings', '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
      local q = queue_of(queue)
      for _, name in ipairs(call('ZRANGE', P .. 'opens:' .. queue, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
        wake(q, name)
      end
      q.opening, q.changed, news[queue] = true, true, true
    end
  end

  -- When the rates that hold ready jobs of a queue open: those of the whole queue too.
  local function write_openings(q)
    local place = q[READY] > 0 and next_place(q)
    local cost = place and cost_at(place)
    for _, gate in ipairs(q.rule.whole or NOTHING) do
      if gate.step > 0 and place and not is_open(gate, cost) then
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

  -- Gates that nothing uses leave nothing behind.
  function write_gates()
    for name, state in pairs(states) do
      local kept = state.used > 0 or state.tat > now
      if state.changed and kept then
        call('HSET', P .. 'g:' .. name, 'used', state.used, 'tat', state.tat, 'queue', state.queue)
      elseif state.changed then
        call('DEL', P .. 'g:' .. name)
      end
      if state.changed then
        call((kept or state.given) and 'ZADD' or 'ZREM', P .. 'gates', unpack((kept or state.given) and { 0, name } or { name }))
      end
      if state.changed and state.tat > 0 then
        call('ZADD', P .. 'tats', state.tat, name)
      end
    end
    for _, q in pairs(queues) do
      if q.opening or q.changed and q.rule.whole then
        write_openings(q)
      end
      if news[q.name] and (q.rule.whole or q.lanes > 0) and workable_at(q) > now then
        news[q.name] = nil
      end
    end
  end

  -- Rates whose starts are all paid for are forgotten.
  function sweep_rates(limit)
    for _, name in ipairs(call('ZRANGE', P .. 'tats', '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
      call('ZREM', P .. 'tats', name)
      state_of(name).changed, state_of(name).tat = true, 0
    end
  end
end)()
