-- Queues: their counters, and the sets that a job is in by its state.
-- `move` is the one way from state to state: it takes a job out of the sets of its old record and puts it into those of
-- its new one. Whatever moves many alike jobs does the same in bulk, and counts by `count`.
-- Lanes and lines whose jobs changed are marked; `update_lanes` (maintain.lua) updates each of them once, in the end.
-- needs: streams

local queues, has_work, has_room, has_ended, touched_lanes, touched_lines = {}, {}, {}, {}, {}, {}
local queue_of, depth, running_cost, marks_shed, touch_lane, count, index_unclaimed, index_job, move, keep_marks, drop_progress, publish, write_queues

(function()
  local STATES = { 'waiting', 'ready', 'running', 'done', 'dead', 'cancelled' }
  local FIELDS = { 'version', 'paused', 'rule', 'keyed', 'tail', 'streamed', 'turn', 'lanes', 'extra_cost', 'scan', 'sheds', unpack(STATES) }

  function queue_of(name)
    local q = queues[name]
    if not q then
      local f = {}
      for i, value in ipairs(call('HMGET', P .. 'q:' .. name, unpack(FIELDS))) do
        f[FIELDS[i]] = value or nil
      end
      q = { name = name, version = tonumber(f.version or 0), paused = tonumber(f.paused or 0), kept = f }
      q.tail, q.streamed, q.turn = f.tail, tonumber(f.streamed or 0), f.turn or START
      q.lanes, q.extra_cost, q.scan, q.sheds, q.starting = tonumber(f.lanes or 0), tonumber(f.extra_cost or 0), f.scan, f.sheds, 0
      q.at, q.gates, q.classes = {}, {}, {}
      q.rule, q.keyed = f.rule and decode(f.rule) or NOTHING, f.keyed and decode(f.keyed) or nil
      for state = WAITING, CANCELLED do
        q[state] = tonumber(f[STATES[state + 1]] or 0)
      end
      queues[name], queues[#queues + 1] = q, q
    end
    return q
  end

  function depth(q)
    return q[WAITING] + q[READY] + q[RUNNING]
  end

  -- What the jobs that run cost together, and those that are about to.
  function running_cost(q)
    return q[RUNNING] + q.extra_cost + q.starting
  end

  -- What a job of the queue says of shedding: it may have to give way, also to a spec that is about to be put.
  function marks_shed(q)
    return (q.rule.shed or q.sheds) and true or nil
  end

  -- A lane of the queue has other jobs now. A queue whose spec has neither lane gates nor classes, and whose jobs have
  -- none from an earlier one, keeps no lanes: its ready jobs are all in one set.
  function touch_lane(q, r)
    local lane = lane_of(r)
    if q.rule.terms or q.rule.default or q.lanes > 0 then
      touched_lanes[q] = touched_lanes[q] or {}
      touched_lanes[q][lane] = true
    elseif lane ~= '' then
      touched_lanes[q] = touched_lanes[q] or { [''] = true }
      touched_lanes[q][lane] = true
    end
  end

  -- Jobs came into a state of a queue, or left it if `n` is negative; `r` is what they have in common.
  function count(r, n)
    local q, state = queue_of(r[QUEUE]), r[STATE]
    q[state] = q[state] + n
    q.changed = true
    if state == READY then
      if n > 0 then
        has_work[r[QUEUE]] = true
      end
      if is_unread(r) then
        q.streamed = q.streamed + n
      end
    end
    local keyed, cost = more(r).keyed, more(r).cost
    if cost and state == RUNNING then
      q.extra_cost = q.extra_cost + n * (cost - 1)
    end
    if keyed then
      q.keyed = q.keyed or { 0, 0, 0, 0, 0, 0 }
      q.keyed[state + 1] = q.keyed[state + 1] + n * #keyed
    end
  end

  -- A member is in a sorted set with this score; false: no longer.
  local function set_score(key, member, score)
    if score then
      call('ZADD', key, score, member)
    else
      call('ZREM', key, member)
    end
  end

  -- A job that is not claimed yet may expire, or be shed.
  function index_unclaimed(sid, r, enters)
    local m = more(r)
    if m.expires then
      set_score(P .. 'expire', sid, enters and m.expires)
    end
    if m.sheds then
      set_score(P .. 'old:' .. r[QUEUE], sid, enters and sid)
      set_score(P .. 'low:' .. r[QUEUE], r[RANK] .. sid, enters and 0)
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

  local function index_finished(sid, r, enters)
    local m, state = more(r), r[STATE]
    set_score(P .. 'e:' .. state, sid, enters and m.finished)
    set_score(P .. 'e:' .. state .. '|' .. r[QUEUE], sid, enters and m.finished)
    if m.kept then
      set_score(P .. 'kept', sid, enters and m.kept)
    end
    if state == DEAD then
      set_score(P .. 'dead', sid, enters and sid)
    end
  end

  -- Newer work of its subject is taken over by a job that is not claimed yet.
  local function index_subject(sid, r, enters)
    local key, subject = P .. 'fresh:' .. r[QUEUE], r[MORE].subject
    if enters then
      call('HSET', key, subject, sid)
    elseif call('HGET', key, subject) == sid then
      call('HDEL', key, subject)
    end
  end

  -- A job comes into the sets of its state, or leaves them.
  function index_job(sid, r, enters)
    local state, m, q = r[STATE], more(r), queue_of(r[QUEUE])
    if state == WAITING and not m.behind then
      set_score(P .. 'due', sid, enters and r[DUE])
    elseif state == READY then
      if not is_unread(r) then
        set_score(P .. 'r:' .. q.name .. '|' .. lane_of(r), r[RANK] .. sid, enters and 0)
        if is_odd(r) then
          set_score(P .. 'odd:' .. q.name, sid, enters and r[DUE])
        end
      elseif enters then
        streams.add(q, { sid }, r)
      end
      touch_lane(q, r)
    elseif state == RUNNING then
      set_score(P .. 'lease', sid, enters and r[UNTIL])
      if m.cancel_requested then
        call(enters and 'SADD' or 'SREM', P .. 'cancel_requested:' .. r[OWNER], sid)
      end
      if not enters then
        drop_progress({ sid })
      end
    elseif state > RUNNING then
      index_finished(sid, r, enters)
    end
    if state < RUNNING then
      index_unclaimed(sid, r, enters)
      if m.merges then
        index_subject(sid, r, enters)
      end
    end
    count(r, enters and 1 or -1)
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

  -- Move its entry in a stream.
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
        streams.release(q, id)
      end
    end
    if is and is[STATE] == READY and streams.accepts(queue_of(is[QUEUE]), sid, is) then
      is[MORE].flow = is[DUE]
    end
  end

  -- Move it in its line: unfinished jobs are in it, and a dead one that blocks it.
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
    local known = is or was
    touched_lines[name] = more(known).home or known[QUEUE]
  end

  -- A job of which this was known is this now, or gone.
  function move(sid, was, is)
    index_job(sid, was, false)
    move_entry(sid, was, is)
    move_line(sid, was, is)
    if was[STATE] <= RUNNING and (not is or is[STATE] > RUNNING) then
      has_room[was[QUEUE]] = true
      if is then
        has_ended[sid] = true
      end
    end
    if is then
      local blob = encoded(is)
      index_job(sid, is, true)
      call('HSET', P .. 'j:' .. sub(sid, 1, 14), sid, blob)
    else
      drop_keyed(was, sid)
      erase({ sid }, was[STATE] == DONE)
    end
  end

  -- Keep how jobs were settled that are gone; the older half is dropped when there is no more room.
  local SETTLE_MEMORY = 65536

  function keep_marks(marks)
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

  -- What is kept of a queue besides its spec; what is false has no field.
  local function values_of(q)
    local values = {
      keyed = q.keyed and pack(q.keyed) or false, tail = q.tail or false, streamed = q.tail and q.streamed,
      turn = q.turn ~= START and q.turn, lanes = q.lanes > 0 and q.lanes, extra_cost = q.extra_cost > 0 and q.extra_cost,
      scan = q.scan or false, sheds = q.sheds or false,
    }
    for state = WAITING, CANCELLED do
      values[STATES[state + 1]] = q[state]
    end
    return values
  end

  local function write_queue(q)
    local key, jobs, values, max_dead = P .. 'q:' .. q.name, 0, {}, q.rule.dead and q.rule.dead.limit
    for state = WAITING, CANCELLED do
      jobs = jobs + q[state]
    end
    if (q.rule.default or q.turn ~= START) and depth(q) == 0 then
      call('UNLINK', P .. 'turn:' .. q.name, P .. 'idle:' .. q.name)
      q.turn = START
    end
    if jobs == 0 and q.version == 0 and q.paused == 0 then
      call('DEL', key)
      call('ZREM', P .. 'queues', q.name)
      return
    end
    for field, value in pairs(values_of(q)) do
      if tostring(value or nil) ~= tostring(q.kept[field]) then
        values[field] = value
      end
    end
    write_hash(key, values)
    if not q.kept.waiting then
      call('ZADD', P .. 'queues', 0, q.name)
    end
    if max_dead then
      set_score(P .. 'over_dead_limit', q.name, q[DEAD] > max_dead and 0)
    end
  end

  function publish(channel, names)
    local list = {}
    for name in pairs(names) do
      list[#list + 1] = name
    end
    if #list > 0 then
      call('SPUBLISH', P .. channel, table.concat(list, ','))
    end
  end

  function write_queues()
    for q in every(queues) do
      if q.changed then
        write_queue(q)
      end
    end
    publish('work', has_work)
    publish('room', has_room)
    publish('ended', has_ended)
  end
end)()
