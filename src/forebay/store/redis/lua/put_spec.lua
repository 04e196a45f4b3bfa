-- Put a spec: name, the spec as text, what scripts know of it, the count of changes that the caller knows, partitions.
local name, body, rule, partitions = ARGV[3], ARGV[4], decode(ARGV[5]), tonumber(ARGV[7])
local q, changes = queue_of(name), tonumber(call('HGET', P .. 'head', 'specs') or 0)
if changes ~= tonumber(ARGV[6]) then
  return { 'stale' }
end
if q.version > 0 and (q.rule.log and 1 or 0) ~= (rule.log and 1 or 0) then
  return { 'kind', q.rule.log and 1 or 0 }
end
if rule.log and q.version == 0 and q[0] + q[1] + q[2] + q[3] + q[4] + q[5] > 0 then
  return { 'kind', 0 }
end
if rule.log and partitions < tonumber(call('HGET', P .. 'log:' .. name, 'partitions') or 0) then
  return { 'fewer' }
end

-- The queue sheds from now on: so do the jobs that it has.
local function mark_all()
  for _, bucket in ipairs(call('ZRANGE', P .. 'buckets', 0, -1)) do
    local all = call('HGETALL', P .. 'j:' .. bucket)
    for i = 1, #all, 2 do
      local r = record(all[i + 1])
      if r[QUEUE] == name and not more(r).sheds then
        local is = edited(r)
        is[MORE].sheds = true
        move(all[i], r, is)
      end
    end
  end
end

if call('GET', P .. 'spec:' .. name) ~= body then
  local shed_before = q.rule.shed
  q.version = call('HINCRBY', P .. 'head', 'specs', 1)
  configure(q, rule)
  call('HSET', P .. 'q:' .. name, 'version', q.version, 'rule', ARGV[5])
  call('SET', P .. 'spec:' .. name, body)
  call('ZREM', P .. 'crowded', name)
  if rule.shed and not shed_before then
    mark_all()
  end
  tell('put_spec', nil, name)
end
if rule.log then
  call('HSET', P .. 'log:' .. name, 'partitions', partitions)
  call('ZADD', P .. 'logs', 0, name)
end
q.changed, eased[name] = true, true
finish()
return { 'ok' }
