-- Workers that announced themselves.
local function forget_worker(owner)
  call('HDEL', P .. 'workers', owner)
  call('ZREM', P .. 'workers_until', owner)
  call('ZREM', P .. 'workers_names', owner)
end
