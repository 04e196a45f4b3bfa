-- Lines: a line exposes one job at a time, the smallest id that has not finished, once it is due. The others wait,
-- whatever their due time; a head that is tried again stays first, and a dead one that blocks keeps the line shut.
-- A job of a smaller id that comes back takes the place of one that is ready; one that runs finishes first.
-- needs: queues

local join_line, expose_lines

(function()
  -- A new job joins its line; whether it is the only one there, so that it need not wait.
  function join_line(sid, name)
    local alone = call('EXISTS', P .. 'line:' .. name) == 0
    call('ZADD', P .. 'line:' .. name, sid, sid)
    if alone then
      call('HSET', P .. 'exposed', name, sid)
    end
    return alone
  end

  local function show(sid, r)
    local is = edited(r)
    is[MORE].behind = nil
    is[STATE] = r[DUE] <= now and READY or WAITING
    move(sid, r, is)
    return is[STATE] == READY and 1 or 0
  end

  local function hide(sid, r)
    local is = edited(r)
    is[STATE], is[MORE].behind = WAITING, true
    move(sid, r, is)
  end

  -- The head of the line, and no other job of it, is exposed; how many became ready by that.
  local function expose(queue, name)
    local head, shown = call('ZRANGE', P .. 'line:' .. name, 0, 0)[1], call('HGET', P .. 'exposed', name)
    local was, first = shown and fetch_one(shown), head and fetch_one(head)
    call(first and first[STATE] == DEAD and 'SADD' or 'SREM', P .. 'blocked:' .. queue, name)
    if was and was[STATE] == RUNNING then
      return 0
    end
    if was and was[STATE] < RUNNING and shown ~= head then
      hide(shown, was)
    end
    if not first or first[STATE] == DEAD then
      call('HDEL', P .. 'exposed', name)
      return 0
    end
    call('HSET', P .. 'exposed', name, head)
    return more(first).behind and show(head, first) or 0
  end

  function expose_lines()
    local ready = 0
    for name, queue in pairs(touched_lines) do
      ready = ready + expose(queue, name)
    end
    touched_lines = {}
    return ready
  end
end)()
