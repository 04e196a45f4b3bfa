-- Queues: their counters, and the sets that a job is in by its state.
-- `move` is the one way from state to state: it takes a job out of the sets of its old record and puts it into those of
-- its new one. Whatever moves many alike jobs does the same in bulk, and counts by `count`.
-- Lanes and lines whose jobs changed are marked; `arrange` (lanes.lua) looks at each of them once, in the end.

local queues, news, eased, ended_now, stirred_lanes, stirred_lines = {}, {}, {}, {}, {}, {}
local queue_of, depth, stir_lane, count, end_rest, add_to_sets, move, remember, drop_progress, publish, write_queues

(function()
  local STATES = { 'waiting', 'ready', 'running', 'done', 'dead', 'cancelled' }
  local FIELDS = { 'version', 'paused', 'rule', 'keyed', 'tail', 'streamed', 'turn', 'lanes', unpack(STATES) }

  function queue_of(name)
    local q = queues[name]
    if not q then
      local f = {}
      for i, value in ipairs(call('HMGET', P .. 'q:' .. name, unpack(FIELDS))) do
        f[FIELDS[i]] = value or nil
      end
      q = { name = name, version = tonumber(f.version or 0), paused = tonumber(f.paused or 0), stored = f.waiting }
      q.tail, q.had_tail, q.streamed = f.tail, f.tail, tonumber(f.streamed or 0)
      q.turn, q.had_turn, q.lanes, q.had_lanes = f.turn or START, f.turn, tonumber(f.lanes or 0), f.lanes
      q.at, q.gates, q.turns, q.turned = {}, {}, {}, {}
      q.rule, q.keyed = f.rule and decode(f.rule) or NOTHING, f.keyed and decode(f.keyed) or nil
      for state = WAITING, CANCELLED do
        q[state] = tonumber(f[STATES[state + 1]] or 0)
      end
      queues[name] = q
    end
    return q
  end

  function depth(q)
    return q[WAITING] + q[READY] + q[RUNNING]
  end

  -- A lane of the queue has other jobs now. A queue whose spec has neither lane gates nor classes, and whose jobs have
  -- none from an earlier one, keeps no lanes: its ready jobs are all in one set.
  function stir_lane(q, r)
    local lane = lane_of(r)
    if q.rule.terms or q.rule.default or q.lanes > 0 then
      stirred_lanes[q] = stirred_lanes[q] or {}
      stirred_lanes[q][lane] = true
    elseif lane ~= '' then
      stirred_lanes[q] = stirred_lanes[q] or { [''] = true }
      stirred_lanes[q][lane] = true
    end
  end

  -- Jobs came into a state of a queue, or left it if `n` is negative; `r` is what they have in common.
  function count(r, n)
    local q, state = queue_of(r[QUEUE]), r[STATE]
    q[state] = q[state] + n
    q.changed = true
    if state == READY then
      if n > 0 then
        news[r[QUEUE]] = true
      end
      if is_unread(r) then
        q.streamed = q.streamed + n
      end
    end
    local keyed = more(r).keyed
    if keyed then
      q.keyed = q.keyed or { 0, 0, 0, 0, 0, 0 }
      q.keyed[state + 1] = q.keyed[state + 1] + n * #keyed
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
    if state == WAITING and not m.behind then
      call('ZADD', P .. 'due', r[DUE], sid)
    elseif state == READY and is_unread(r) then
      streams.add(queue_of(r[QUEUE]), { sid }, r)
    elseif state == READY then
      call('ZADD', P .. 'r:' .. r[QUEUE] .. '|' .. lane_of(r), 0, r[RANK] .. sid)
      if is_odd(r) then
        call('ZADD', P .. 'odd:' .. r[QUEUE], r[DUE], sid)
      end
    elseif state == RUNNING then
      call('ZADD', P .. 'lease', r[UNTIL], sid)
      if m.asked then
        call('SADD', P .. 'asked:' .. r[OWNER], sid)
      end
    elseif state > RUNNING then
      add_finished(sid, r)
    end
    if state == READY then
      stir_lane(queue_of(r[QUEUE]), r)
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
    if state == WAITING and not m.behind then
      call('ZREM', P .. 'due', sid)
    elseif state == READY and not is_unread(r) then
      call('ZREM', P .. 'r:' .. r[QUEUE] .. '|' .. lane_of(r), r[RANK] .. sid)
      if is_odd(r) then
        call('ZREM', P .. 'odd:' .. r[QUEUE], sid)
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
    if state == READY then
      stir_lane(queue_of(r[QUEUE]), r)
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
      local q, id = queue_of(was[QUEUE]), entry_id(sid, flow)
      if was[DELIVERY] == 0 or not is or is[STATE] > RUNNING then
        streams.drop(q, { id })
        if is then
          is[MORE].flow = nil
        end
      elseif was[STATE] == RUNNING and is[STATE] < RUNNING then
        streams.hand_back(q, id)
      end
    end
    if is and is[STATE] == READY and streams.takes(queue_of(is[QUEUE]), sid, is) then
      is[MORE].flow = is[DUE]
    end
  end

  -- The same of its line: unfinished jobs are in it, and a dead one that blocks it.
  local function move_line(sid, was, is)
    local name = more(was).line
    if not name or was[STATE] < RUNNING and is and is[STATE] <= RUNNING then
      return
    end
    local stays = is and (is[STATE] <= RUNNING or is[STATE] == DEAD and more(is).blocks)
    if stays then
      call('ZADD', P .. 'line:' .. name, sid, sid)
    else
      call('ZREM', P .. 'line:' .. name, sid)
    end
    stirred_lines[name] = true
  end

  -- A job of which this was known is this now, or gone.
  function move(sid, was, is)
    remove_from_sets(sid, was)
    move_entry(sid, was, is)
    move_line(sid, was, is)
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

  local function write_queue(q)
    local key, rule, jobs = P .. 'q:' .. q.name, q.rule, 0
    for state = 0, 5 do
      jobs = jobs + q[state]
    end
    if q.rule.default and depth(q) == 0 then
      call('DEL', P .. 'turn:' .. q.name, P .. 'idle:' .. q.name)
      q.turn = START
    end
    if q.turn ~= START then
      call('HSET', key, 'turn', q.turn)
    elseif q.had_turn then
      call('HDEL', key, 'turn')
    end
    if jobs == 0 and q.version == 0 and q.paused == 0 then
      call('DEL', key)
      call('ZREM', P .. 'queues', q.name)
      return
    end
    call('HSET', key, 'waiting', q[0], 'ready', q[1], 'running', q[2], 'done', q[3], 'dead', q[4], 'cancelled', q[5])
    if q.keyed then
      call('HSET', key, 'keyed', pack(q.keyed))
    end
    if q.lanes > 0 then
      call('HSET', key, 'lanes', q.lanes)
    elseif q.had_lanes then
      call('HDEL', key, 'lanes')
    end
    if q.tail then
      call('HSET', key, 'tail', q.tail, 'streamed', q.streamed)
    elseif q.had_tail then
      call('HDEL', key, 'tail', 'streamed')
    end
    if not q.stored then
      call('ZADD', P .. 'queues', 0, q.name)
    end
    local most = rule.dead and rule.dead.most
    if most and q[DEAD] > most then
      call('ZADD', P .. 'crowded', 0, q.name)
    elseif most then
      call('ZREM', P .. 'crowded', q.name)
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

  function write_queues()
    for _, q in pairs(queues) do
      if q.changed then
        write_queue(q)
      end
    end
    publish('work', news)
    publish('room', eased)
    publish('ended', ended_now)
  end
end)()
