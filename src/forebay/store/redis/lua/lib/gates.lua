-- The gates in front of ready: who holds a slot, who is parked where, who is next. What they mean is told in
-- `store.gating`, of which this is the form in Lua: all of a job's gates or none; nobody passes who is parked before
-- him, and classes take turns where the stamps say so; an ordered gate lets in the smallest id of its line; of a rate
-- nothing is held, it has a tide, and lets in only who starts; who would stand behind one like it at an open rate stays
-- where it is until that one has started. A call reads a gate once; `write_gates` puts back what was touched, and
-- forgets what nobody is at.

local NAME, LIMIT, ORDERED, BLOCKS, COST, STEP, SHARE = 1, 2, 3, 4, 5, 6, 7
local gates_of_call, touched, opened = {}, {}, nil
local find_gate, slots_of, open_again, renumbered, head_of_line, enter_gates, rejoin_lines, admit, free_slots,
  unpark, end_gates, forget_gates, next_candidate, write_paces, open_rates, next_start, write_gates, sweep_rates

(function()
  local function touch(g)
    gates_of_call[g.name] = g
    touched[#touched + 1] = g
    return g
  end

  -- The gate, if anybody is at it.
  function find_gate(name)
    local g = gates_of_call[name]
    if g then
      return g
    end
    local f = call('HMGET', P .. 'g:' .. name, 'slots', 'held', 'parked', 'standing', 'step', 'tide')
    if not f[1] then
      return nil
    end
    return touch({
      name = name, slots = tonumber(f[1]), held = tonumber(f[2]), parked = tonumber(f[3]), standing = tonumber(f[4]),
      step = tonumber(f[5]), tide = tonumber(f[6]), limit = tonumber(call('HGET', P .. 'limits', name)), queues = {},
      stored = true,
    })
  end

  local function gate_of(stamp)
    local g = find_gate(stamp[NAME]) or touch({
      name = stamp[NAME], slots = stamp[LIMIT], held = 0, parked = 0, standing = 0, step = stamp[STEP], tide = 0,
      limit = tonumber(call('HGET', P .. 'limits', stamp[NAME])), queues = {},
    })
    g.blocks = g.blocks or stamp[BLOCKS]
    return g
  end

  -- No number of slots lets two in where a line says who is next.
  function slots_of(g)
    local slots = g.limit or g.slots
    return g.standing > 0 and min(slots, 1) or slots
  end

  local function has_room(g, cost)
    local slots = slots_of(g)
    return g.held + min(cost or 1, max(slots, 1)) <= slots
  end

  -- When a rate lets in a job of this cost.
  local function opens_at(g, cost)
    local most = g.limit or g.slots
    return most > 0 and g.tide - (most - min(cost, most)) * g.step or MOST
  end

  function open_again(g)
    if g.parked > 0 and g.step == 0 and has_room(g) then
      call('ZADD', P .. 'opened', 0, g.name)
      if opened then
        opened[#opened + 1] = g.name
      end
    end
  end

  function renumbered(g)
    if g.step > 0 then
      g.moved = true
    else
      open_again(g)
    end
  end

  function head_of_line(name)
    return call('ZRANGE', P .. 'line:' .. name, 0, 0)[1]
  end

  local function cost_at(r, name)
    for _, stamp in ipairs(more(r).gates or NOTHING) do
      if stamp[NAME] == name then
        return stamp[COST]
      end
    end
    return 1
  end

  -- A new job joins the lines of its ordered gates; its stamps are the newest, so their numbers hold.
  function enter_gates(sid, stamps)
    for _, stamp in ipairs(stamps) do
      local g = gate_of(stamp)
      if stamp[ORDERED] then
        g.standing = g.standing + call('ZADD', P .. 'line:' .. g.name, sid, sid)
      end
      if g.slots ~= stamp[LIMIT] or g.step ~= stamp[STEP] then
        g.slots, g.step = stamp[LIMIT], stamp[STEP]
        renumbered(g)
      end
    end
  end

  -- A dead job came back to life; where it blocked its line, it never left it.
  function rejoin_lines(sid, r)
    for _, stamp in ipairs(more(r).gates or NOTHING) do
      if stamp[ORDERED] then
        local g = gate_of(stamp)
        g.standing = g.standing + call('ZADD', P .. 'line:' .. g.name, sid, sid)
      end
    end
  end

  local function whose_turn(queue, g)
    return call('LINDEX', P .. 'ring:' .. queue .. '|' .. g.name, 0)
  end

  -- Who goes for the first in rank of those that are parked at a gate: its place and its record.
  local function in_turn(place, g)
    local r = fetch_one(sub(place, 21))
    local cls = share_at(more(r), g.name) and whose_turn(r[QUEUE], g)
    if cls and cls ~= r[CLS] then
      place = call('ZRANGE', class_key(r[QUEUE], g.name, cls), 0, 0)[1]
      r = fetch_one(sub(place, 21))
    end
    return place, r
  end

  -- One of the class was let in.
  local function took(r, stamp, g)
    local name = r[QUEUE] .. '|' .. g.name
    local rest = tonumber(call('HGET', P .. 'deficit:' .. name, r[CLS]))
    if rest then
      rest = (rest > 0 and rest or stamp[SHARE]) - 1
      call('HSET', P .. 'deficit:' .. name, r[CLS], rest)
      if rest == 0 and whose_turn(r[QUEUE], g) == r[CLS] then
        call('LMOVE', P .. 'ring:' .. name, P .. 'ring:' .. name, 'LEFT', 'RIGHT')
      end
    end
  end

  -- Where classes take turns: another one has its turn, or somebody of its own is before it, or of another queue. Who
  -- starts has had its turn before.
  local function passes_in_turn(sid, r, stamp, g, starts)
    local mine, turn = r[RANK] .. sid, whose_turn(r[QUEUE], g)
    local first = stamp[STEP] == 0 and call('ZRANGE', P .. 'gp:' .. g.name, 0, 0)[1]
    if first and first < mine and fetch_one(sub(first, 21))[QUEUE] ~= r[QUEUE] then
      return true
    end
    if starts and stamp[STEP] == 0 then
      return false
    end
    local own = call('ZRANGE', class_key(r[QUEUE], g.name, r[CLS]), 0, 0)[1]
    return turn and turn ~= r[CLS] or own and own < mine
  end

  -- Whether a job would pass somebody who waits for room.
  local function passes(sid, r, stamp, g, starts)
    if g.parked == 0 then
      return false
    end
    if stamp[SHARE] > 0 then
      return passes_in_turn(sid, r, stamp, g, starts)
    end
    local key = stamp[STEP] > 0 and 'gr:' .. r[QUEUE] .. '|' .. g.name or 'gp:' .. g.name
    local first = call('ZRANGE', P .. key, 0, 0)[1]
    return first and first < r[RANK] .. sid
  end

  local function lets_in(sid, r, stamp, g, starts, turn)
    if stamp[ORDERED] then
      return has_room(g) and head_of_line(g.name) == sid
    end
    if stamp[STEP] > 0 and not (starts and opens_at(g, stamp[COST]) <= now) then
      return false
    end
    return (stamp[STEP] > 0 or has_room(g, stamp[COST])) and (g.name == turn or not passes(sid, r, stamp, g, starts))
  end

  -- Whether it would stand behind somebody at a rate that is open: then it need not go there yet. That one has the same
  -- gate before it: it looks again when that one is gone.
  local function behind(sid, r, stamp, g, turn)
    if g.parked == 0 or opens_at(g, stamp[COST]) > now then
      return false
    end
    local shared = stamp[SHARE] > 0
    local key = shared and class_key(r[QUEUE], g.name, r[CLS]) or P .. 'gr:' .. r[QUEUE] .. '|' .. g.name
    local first = call('ZRANGE', key, 0, 0)[1]
    if first and first < r[RANK] .. sid then
      for _, each in ipairs(more(fetch_one(sub(first, 21))).gates) do
        if each[NAME] == turn and not each[ORDERED] then
          return true
        end
      end
    end
    return false
  end

  -- A job has left its rate, or that is closed now: others may go on to there.
  local function look_again(r)
    for _, stamp in ipairs(more(r).gates or NOTHING) do
      if stamp[STEP] == 0 then
        open_again(gate_of(stamp))
      end
    end
  end

  local function shut(name)
    call('ZREM', P .. 'opened', name)
    for i = #opened, 1, -1 do
      if opened[i] == name then
        table.remove(opened, i)
      end
    end
  end

  -- Take the slots of every gate; or the name of the first one that is closed, where the job is counted as parked.
  -- `starts`: a claim hands the job out, so rates may let it in. `turn`: the gate that has chosen it.
  function admit(sid, r, starts, turn)
    local stamps = more(r).gates or NOTHING
    for _, stamp in ipairs(stamps) do
      local g = gate_of(stamp)
      if not lets_in(sid, r, stamp, g, starts, turn) then
        if turn and stamp[STEP] > 0 and not starts and behind(sid, r, stamp, g, turn) then
          g = find_gate(turn)
          shut(turn)
        end
        g.parked = g.parked + 1
        g.queues[r[QUEUE]] = true
        if starts then
          look_again(r)
        end
        return g.name
      end
    end
    for _, stamp in ipairs(stamps) do
      local g = gate_of(stamp)
      if stamp[SHARE] > 0 then
        took(r, stamp, g)
      end
      if stamp[STEP] > 0 then
        g.tide = max(g.tide, now) + stamp[COST] * g.step
        g.moved = true
      else
        g.held = g.held + stamp[COST]
      end
    end
    if starts then
      look_again(r)
    end
    return nil
  end

  -- Give the job's slots back.
  function free_slots(r)
    for _, stamp in ipairs(more(r).gates or NOTHING) do
      if stamp[STEP] == 0 then
        local g = gate_of(stamp)
        g.held = g.held - stamp[COST]
        open_again(g)
      end
    end
  end

  function unpark(r)
    local name = more(r).gate
    local g = name and find_gate(name)
    if g then
      g.parked = g.parked - 1
      g.queues[r[QUEUE]] = true
    end
    return g
  end

  local function leave_line(sid, stamp)
    local g = gate_of(stamp)
    if stamp[ORDERED] then
      g.standing = g.standing - call('ZREM', P .. 'line:' .. g.name, sid)
    end
    open_again(g)
  end

  -- The job ended in a state: it is parked nowhere, and in no line unless it died and blocks it.
  function end_gates(sid, r, state)
    unpark(r)
    for _, stamp in ipairs(more(r).gates or NOTHING) do
      if stamp[BLOCKS] and state == DEAD then
        gate_of(stamp)
      else
        leave_line(sid, stamp)
      end
    end
  end

  -- A dead job that blocked its lines is gone for good.
  function forget_gates(sid, r)
    for _, stamp in ipairs(more(r).gates or NOTHING) do
      if stamp[BLOCKS] then
        leave_line(sid, stamp)
      end
    end
  end

  local function candidate(g)
    if not has_room(g) or g.parked == 0 then
      return nil
    end
    local place = g.standing == 0 and call('ZRANGE', P .. 'gp:' .. g.name, 0, 0)[1]
    place = place and in_turn(place, g)
    local sid = place and sub(place, 21) or g.standing > 0 and head_of_line(g.name)
    local r = sid and fetch_one(sid)
    if not r or more(r).gate ~= g.name or r[DUE] > now or not has_room(g, cost_at(r, g.name)) then
      return nil
    end
    unpark(r)
    return sid, r
  end

  -- A parked job whose gate has room now; it counts as parked no longer, and the caller tries to admit it.
  function next_candidate()
    opened = opened or call('ZRANGE', P .. 'opened', 0, BATCH - 1)
    while #opened > 0 do
      local g = find_gate(opened[1])
      if g then
        local sid, r = candidate(g)
        if sid then
          return sid, r
        end
      end
      shut(opened[1])
    end
    return nil
  end

  -- Paces: who of a queue is first at a rate, and when it is let in.
  local function refresh_openings(queue)
    local first = first_score(P .. 'pn:' .. queue)
    if first then
      call('ZADD', P .. 'openings', first, queue)
    else
      call('ZREM', P .. 'openings', queue)
    end
  end

  -- Which class a pace tells to be next.
  local function class_of(pace)
    return string.match(pace, '|(.*)$')
  end

  local function open_pace(queue, name, place, cls)
    call('ZADD', P .. 'po:' .. queue, 0, place .. name)
    call('ZADD', P .. 'pc:' .. queue .. '|' .. cls, 0, place .. name)
    if cls ~= '' then
      join_ring(queue, cls)
    end
  end

  local function close_pace(queue, name, pace)
    local place = sub(pace, 1, 36) .. name
    call('ZREM', P .. 'pn:' .. queue, name)
    call('ZREM', P .. 'po:' .. queue, place)
    call('ZREM', P .. 'pc:' .. queue .. '|' .. class_of(pace), place)
  end

  local function write_pace(g, queue)
    local first = call('ZRANGE', P .. 'gr:' .. queue .. '|' .. g.name, 0, 0)[1]
    local known = call('HGET', P .. 'pace:' .. queue, g.name)
    if known then
      close_pace(queue, g.name, known)
    end
    if first then
      local place, r = in_turn(first, g)
      local opens = opens_at(g, cost_at(r, g.name))
      call('HSET', P .. 'pace:' .. queue, g.name, place .. (opens < MOST and text(opens) or '') .. '|' .. r[CLS])
      call('SADD', P .. 'pg:' .. g.name, queue)
      if opens <= now then
        open_pace(queue, g.name, place, r[CLS])
        news[queue] = true
      else
        look_again(r)
        if opens < MOST then
          call('ZADD', P .. 'pn:' .. queue, opens, g.name)
        end
      end
    elseif known then
      call('HDEL', P .. 'pace:' .. queue, g.name)
      call('SREM', P .. 'pg:' .. g.name, queue)
    end
    if known then
      keep_turn(queue, class_of(known))
    end
    refresh_openings(queue)
  end

  function write_paces()
    for _, g in ipairs(touched) do
      if g.step > 0 and (next(g.queues) or g.moved) then
        if g.moved then
          for _, queue in ipairs(call('SMEMBERS', P .. 'pg:' .. g.name)) do
            g.queues[queue] = true
          end
        end
        for queue in pairs(g.queues) do
          write_pace(g, queue)
        end
        g.queues, g.moved = {}, false
      end
    end
  end

  -- Rates whose time has come are open.
  function open_rates(limit)
    for _, queue in ipairs(call('ZRANGE', P .. 'openings', '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
      for _, name in ipairs(call('ZRANGE', P .. 'pn:' .. queue, '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
        local pace = call('HGET', P .. 'pace:' .. queue, name)
        call('ZREM', P .. 'pn:' .. queue, name)
        open_pace(queue, name, sub(pace, 1, 36), class_of(pace))
      end
      refresh_openings(queue)
      news[queue] = true
    end
  end

  -- A job of the queue whose rate lets it in now; it counts as parked no longer, and the caller tries to admit it.
  function next_start(queue, cls)
    write_paces()
    local member = call('ZRANGE', P .. (cls and 'pc:' .. queue .. '|' .. cls or 'po:' .. queue), 0, 0)[1]
    if not member then
      return nil
    end
    local sid = sub(member, 21, 36)
    local r = fetch_one(sid)
    unpark(r)
    return sid, r
  end

  -- Lines that nobody passes because their head is dead are known by queue.
  local function write_blocked(g)
    local head = head_of_line(g.name)
    local r = head and fetch_one(head)
    local key = P .. 'blocked:' .. string.match(g.name, '^order/([^/]+)/')
    call(r and r[STATE] == DEAD and 'SADD' or 'SREM', key, g.name)
  end

  local function write_gate(g)
    if g.blocks then
      write_blocked(g)
    end
    local used = g.held > 0 or g.parked > 0 or g.standing > 0
    if used or g.tide > now then
      call('HSET', P .. 'g:' .. g.name, 'slots', g.slots, 'held', g.held, 'parked', g.parked, 'standing', g.standing,
        'step', g.step, 'tide', g.tide)
      call('ZADD', P .. 'gates', 0, g.name)
    elseif g.stored then
      call('DEL', P .. 'g:' .. g.name)
      call('ZREM', P .. 'gates', g.name)
      call('ZREM', P .. 'opened', g.name)
    end
    if g.step > 0 and not used and g.tide > now then
      call('ZADD', P .. 'ebb', g.tide, g.name)
    elseif g.step > 0 then
      call('ZREM', P .. 'ebb', g.name)
    end
  end

  function write_gates()
    write_paces()
    for _, g in ipairs(touched) do
      write_gate(g)
    end
  end

  -- Rates whose starts are all paid for, and that nobody waits at, are forgotten.
  function sweep_rates(limit)
    for _, name in ipairs(call('ZRANGE', P .. 'ebb', '-inf', now, 'BYSCORE', 'LIMIT', 0, limit)) do
      local g = find_gate(name)
      if not g then
        call('ZREM', P .. 'ebb', name)
      end
    end
  end
end)()
