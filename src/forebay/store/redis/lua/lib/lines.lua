-- Queues: their counters, the sets that a job is in by its state, and the turns of classes.
-- `move` is the one way from state to state: it takes a job out of the sets of its old record and puts it into those of
-- its new one. Who moves many alike jobs does the same in bulk, and counts by `count`.

local lines, news, eased, ended_now = {}, {}, {}, {}
local line, depth, join_ring, leave_ring, keep_turn, class_key, share_at, count, end_rest, add_to_sets, move, remember,
  drop_progress, publish, write_lines

(function()
  local STATES = { 'waiting', 'ready', 'running', 'done', 'dead', 'cancelled' }

  function line(name)
    local l = lines[name]
    if not l then
      local f = call('HMGET', P .. 'q:' .. name, 'version', 'paused', 'rule', 'keyed', 'tail', 'streamed', unpack(STATES))
      l = { name = name, version = tonumber(f[1] or 0), paused = tonumber(f[2] or 0), stored = f[7] }
      l.tail, l.had_tail, l.streamed = f[5] or nil, f[5], tonumber(f[6] or 0)
      l.rule, l.keyed = f[3] and decode(f[3]) or NOTHING, f[4] and decode(f[4]) or nil
      for state = WAITING, CANCELLED do
        l[state] = tonumber(f[7 + state] or 0)
      end
      lines[name] = l
    end
    return l
  end

  function depth(l)
    return l[WAITING] + l[READY] + l[RUNNING]
  end

  function join_ring(queue, cls)
    if call('HSETNX', P .. 'deficit:' .. queue, cls, 0) == 1 then
      call('RPUSH', P .. 'ring:' .. queue, cls)
    end
  end

  -- A class without work loses its place.
  function leave_ring(queue, cls)
    if call('HDEL', P .. 'deficit:' .. queue, cls) == 1 then
      call('LREM', P .. 'ring:' .. queue, 1, cls)
    end
  end

  -- Jobs came into a state of a queue, or left it if `n` is negative; `r` is what they have in common.
  function count(r, n)
    local l, state = line(r[QUEUE]), r[STATE]
    l[state] = l[state] + n
    l.changed = true
    if state == READY then
      if n > 0 then
        news[r[QUEUE]] = true
      end
      if is_unread(r) then
        l.streamed = l.streamed + n
      end
    end
    local keyed = more(r).keyed
    if keyed then
      l.keyed = l.keyed or { 0, 0, 0, 0, 0, 0 }
      l.keyed[state + 1] = l.keyed[state + 1] + n * #keyed
    end
  end

  -- A job that nobody has claimed yet may expire, or have to give way.
  local function begin_rest(sid, r)
    local m = more(r)
    if m.expires then
      call('ZADD', P .. 'expire', m.expires, sid)
    end
    if m.sheds then
      call('ZADD', P .. 'old:' .. r[QUEUE], sid, sid)
      call('ZADD', P .. 'low:' .. r[QUEUE], 0, r[RANK] .. sid)
    end
  end

  function end_rest(sid, r)
    local m = more(r)
    if m.expires then
      call('ZREM', P .. 'expire', sid)
    end
    if m.sheds then
      call('ZREM', P .. 'old:' .. r[QUEUE], sid)
      call('ZREM', P .. 'low:' .. r[QUEUE], r[RANK] .. sid)
    end
  end

  -- Whether a class has ready jobs, or somebody whom a rate lets start; if not, it has no place in the ring.
  function keep_turn(queue, cls)
    if call('EXISTS', P .. 'r:' .. queue .. '|' .. cls, P .. 'pc:' .. queue .. '|' .. cls) == 0 then
      leave_ring(queue, cls)
    end
  end

  -- The set of those of a class that are parked where classes take turns.
  function class_key(queue, gate, cls)
    return P .. 'gc:' .. queue .. '|' .. #gate .. '|' .. gate .. '|' .. cls
  end

  -- The weight of a job's class where it is parked; nil: it goes by rank alone.
  function share_at(m, gate)
    for _, stamp in ipairs(m.gates or NOTHING) do
      if stamp[1] == gate then
        return stamp[7] > 0 and stamp[7] or nil
      end
    end
    return nil
  end

  local function is_rate(gate)
    return sub(gate, 1, 5) == 'rate/'
  end

  local any_progress

  -- What was reported of jobs ends with their deliveries; most jobs report nothing.
  function drop_progress(sids)
    if any_progress == nil then
      any_progress = call('EXISTS', P .. 'progress') == 1
    end
    if any_progress then
      call('HDEL', P .. 'progress', unpack(sids))
    end
  end

  local function add_finished(sid, r)
    local m, state = more(r), r[STATE]
    call('ZADD', P .. 'e:' .. state, m.finished, sid)
    call('ZADD', P .. 'e:' .. state .. '|' .. r[QUEUE], m.finished, sid)
    if m.kept then
      call('ZADD', P .. 'kept', m.kept, sid)
    end
    if state == DEAD then
      call('ZADD', P .. 'dead', sid, sid)
    end
  end

  local function remove_finished(sid, r)
    local m, state = more(r), r[STATE]
    call('ZREM', P .. 'e:' .. state, sid)
    call('ZREM', P .. 'e:' .. state .. '|' .. r[QUEUE], sid)
    if m.kept then
      call('ZREM', P .. 'kept', sid)
    end
    if state == DEAD then
      call('ZREM', P .. 'dead', sid)
    end
  end

  function add_to_sets(sid, r)
    local state, m = r[STATE], more(r)
    if state == WAITING and m.gate then
      call('ZADD', P .. 'gp:' .. m.gate, 0, r[RANK] .. sid)
      call('ZADD', P .. 'held:' .. r[QUEUE], r[DUE], sid)
      if share_at(m, m.gate) then
        call('ZADD', class_key(r[QUEUE], m.gate, r[CLS]), 0, r[RANK] .. sid)
        join_ring(r[QUEUE] .. '|' .. m.gate, r[CLS])
      end
      if is_rate(m.gate) then
        call('ZADD', P .. 'gr:' .. r[QUEUE] .. '|' .. m.gate, 0, r[RANK] .. sid)
      end
    elseif state == WAITING then
      call('ZADD', P .. 'due', r[DUE], sid)
    elseif state == READY and is_unread(r) then
      streams.add(line(r[QUEUE]), { sid }, r)
    elseif state == READY then
      call('ZADD', P .. 'r:' .. r[QUEUE] .. '|' .. r[CLS], 0, r[RANK] .. sid)
      if is_odd(r) then
        call('ZADD', P .. 'odd:' .. r[QUEUE], r[DUE], sid)
      end
      if r[CLS] ~= '' then
        join_ring(r[QUEUE], r[CLS])
      end
    elseif state == RUNNING then
      call('ZADD', P .. 'lease', r[UNTIL], sid)
      if m.asked then
        call('SADD', P .. 'asked:' .. r[OWNER], sid)
      end
    else
      add_finished(sid, r)
    end
    if state < RUNNING then
      begin_rest(sid, r)
      if m.merges then
        call('HSET', P .. 'fresh:' .. r[QUEUE], m.subject, sid)
      end
    end
    count(r, 1)
  end

  local function remove_from_sets(sid, r)
    local state, m = r[STATE], more(r)
    if state == WAITING and m.gate then
      call('ZREM', P .. 'gp:' .. m.gate, r[RANK] .. sid)
      call('ZREM', P .. 'held:' .. r[QUEUE], sid)
      if share_at(m, m.gate) then
        local key = class_key(r[QUEUE], m.gate, r[CLS])
        call('ZREM', key, r[RANK] .. sid)
        if call('EXISTS', key) == 0 then
          leave_ring(r[QUEUE] .. '|' .. m.gate, r[CLS])
        end
      end
      if is_rate(m.gate) then
        call('ZREM', P .. 'gr:' .. r[QUEUE] .. '|' .. m.gate, r[RANK] .. sid)
      end
    elseif state == WAITING then
      call('ZREM', P .. 'due', sid)
    elseif state == READY and not is_unread(r) then
      call('ZREM', P .. 'r:' .. r[QUEUE] .. '|' .. r[CLS], r[RANK] .. sid)
      if is_odd(r) then
        call('ZREM', P .. 'odd:' .. r[QUEUE], sid)
      end
      if r[CLS] ~= '' then
        keep_turn(r[QUEUE], r[CLS])
      end
    elseif state == RUNNING then
      call('ZREM', P .. 'lease', sid)
      drop_progress({ sid })
      if m.asked then
        call('SREM', P .. 'asked:' .. r[OWNER], sid)
      end
    elseif state > RUNNING then
      remove_finished(sid, r)
    end
    if state < RUNNING then
      end_rest(sid, r)
      if m.merges and call('HGET', P .. 'fresh:' .. r[QUEUE], m.subject) == sid then
        call('HDEL', P .. 'fresh:' .. r[QUEUE], m.subject)
      end
    end
    count(r, -1)
  end

  -- Keys that are taken by the state of their job end with it.
  local function drop_keyed(r, sid)
    for _, key in ipairs(more(r).keyed or NOTHING) do
      local known = call('HGET', P .. 'k:' .. r[QUEUE], key)
      if known and decode(known)[1] == sid then
        call('HDEL', P .. 'k:' .. r[QUEUE], key)
        call('ZREM', P .. 'ku:' .. r[QUEUE], key)
      end
    end
  end

  -- The same of its entry in a stream.
  local function move_entry(sid, was, is)
    local flow = more(was).flow
    if flow then
      local l, id = line(was[QUEUE]), entry_id(sid, flow)
      if was[DELIVERY] == 0 or not is or is[STATE] > RUNNING then
        streams.drop(l, { id })
        if is then
          is[MORE].flow = nil
        end
      elseif was[STATE] == RUNNING and is[STATE] < RUNNING then
        streams.hand_back(l, id)
      end
    end
    if is and is[STATE] == READY and streams.takes(line(is[QUEUE]), sid, is) then
      is[MORE].flow = is[DUE]
    end
  end

  -- A job of which this was known is this now, or gone.
  function move(sid, was, is)
    remove_from_sets(sid, was)
    move_entry(sid, was, is)
    if was[STATE] <= RUNNING and (not is or is[STATE] > RUNNING) then
      eased[was[QUEUE]] = true
      if is then
        ended_now[sid] = true
      end
    end
    if is then
      local blob = encoded(is)
      add_to_sets(sid, is)
      call('HSET', P .. 'j:' .. sub(sid, 1, 14), sid, blob)
    else
      drop_keyed(was, sid)
      erase({ sid }, was[STATE] == DONE)
    end
  end

  -- Jobs are gone that were settled so: half of what is remembered goes when there is no more room.
  local SETTLE_MEMORY = 65536

  function remember(marks)
    if #marks == 0 then
      return
    end
    local half = call('HGET', P .. 'head', 'half') or '0'
    call('HSET', P .. 'gone' .. half, unpack(marks))
    if call('HINCRBY', P .. 'head', 'filled', #marks / 2) >= SETTLE_MEMORY then
      half = half == '0' and '1' or '0'
      call('HSET', P .. 'head', 'half', half, 'filled', 0)
      call('UNLINK', P .. 'gone' .. half)
    end
  end

  local function write_line(l)
    local key, rule, held = P .. 'q:' .. l.name, l.rule, 0
    for state = 0, 5 do
      held = held + l[state]
    end
    if held == 0 and l.version == 0 and l.paused == 0 then
      call('DEL', key)
      call('ZREM', P .. 'queues', l.name)
      return
    end
    call('HSET', key, 'waiting', l[0], 'ready', l[1], 'running', l[2], 'done', l[3], 'dead', l[4], 'cancelled', l[5])
    if l.keyed then
      call('HSET', key, 'keyed', pack(l.keyed))
    end
    if l.tail then
      call('HSET', key, 'tail', l.tail, 'streamed', l.streamed)
    elseif l.had_tail then
      call('HDEL', key, 'tail', 'streamed')
    end
    if not l.stored then
      call('ZADD', P .. 'queues', 0, l.name)
    end
    local most = rule.dead and rule.dead.most
    if most and l[DEAD] > most then
      call('ZADD', P .. 'crowded', 0, l.name)
    elseif most then
      call('ZREM', P .. 'crowded', l.name)
    end
  end

  function publish(channel, names)
    local list = {}
    for name in pairs(names) do
      list[#list + 1] = name
    end
    if #list > 0 then
      call('PUBLISH', P .. channel, table.concat(list, ','))
    end
  end

  function write_lines()
    for _, l in pairs(lines) do
      if l.changed then
        write_line(l)
      end
    end
    publish('work', news)
    publish('room', eased)
    publish('ended', ended_now)
  end
end)()
