-- Classes take turns by virtual time, as `forebay.core.share` has it: a start moves the turn of its class on, and the
-- smallest turn goes next. A class with open lanes is in `turns`, by its turn and the head of the first of them; one without
-- is known in `idle` while its turn is ahead of the queue's, which is that of the class that started last.
-- needs: gates

local IDLE_CLASSES, UNIT = 256, 720720000
local open_key, turn_of, place_class, advance_class, restart_turns, write_classes

(function()
  function open_key(q, cls)
    return P .. 'open:' .. q.name .. '|' .. cls
  end

  local function class_of(q, name)
    local cls = q.classes[name]
    if not cls then
      local at = call('HGET', P .. 'turn:' .. q.name, name) or nil
      cls = { turn = at and sub(at, 1, 20) or START, at = at }
      q.classes[name] = cls
    end
    return cls
  end

  -- The turn of a class. One that had no open lane is lifted: idle time is not saved up.
  function turn_of(q, name)
    local turn = class_of(q, name).turn
    return turn > q.turn and turn or q.turn
  end

  local function key_of(q, at)
    return P .. (#at > 20 and 'turns:' or 'idle:') .. q.name
  end

  -- The class is where its turn and its open lanes say.
  function place_class(q, name)
    local cls, head, turn = class_of(q, name), order.first(open_key(q, name)), turn_of(q, name)
    local at = head and turn .. sub(head, 1, 36) or turn > q.turn and turn or nil
    if at ~= cls.at then
      if cls.at then
        order.remove(key_of(q, cls.at), cls.at .. name)
      end
      if at then
        order.add(key_of(q, at), at .. name)
      end
      cls.moved = true
    end
    cls.turn, cls.at = turn, at
  end

  -- A job of the class starts, in its turn or because only this class was wanted.
  function advance_class(q, name, in_turn)
    local turn = turn_of(q, name)
    q.turn = in_turn and turn or q.turn
    class_of(q, name).turn = shifted(turn, floor(UNIT / (q.rule.weights[name] or q.rule.default)))
  end

  -- Turns begin again, from the last one on.
  function restart_turns(q)
    for _, key in ipairs({ 'turns:', 'idle:' }) do
      local last = call('ZRANGE', P .. key .. q.name, 0, 0, 'REV')[1]
      q.turn = last and sub(last, 1, 20) > q.turn and sub(last, 1, 20) or q.turn
    end
  end

  -- Write the classes that moved. Of idle ones some are kept; one that is dropped gains a single start.
  function write_classes(q)
    local key, values = P .. 'idle:' .. q.name, {}
    for name, cls in pairs(q.classes) do
      if cls.moved then
        values[name] = cls.at or false
      end
    end
    if next(values) then
      order.write(key)
      local dropped = call('ZPOPMIN', key, max(0, min(call('ZCARD', key) - IDLE_CLASSES, BATCH)))
      for i = 1, #dropped, 2 do
        values[sub(dropped[i], 21)] = false
      end
    end
    write_hash(P .. 'turn:' .. q.name, values)
  end
end)()
