-- Running jobs of an owner whose end is requested, some of them: pairs of an id and a delivery.
local sids, reply = call('SRANDMEMBER', P .. 'asked:' .. ARGV[3], BATCH), {}
for _, sid in ipairs(sids) do
  local r = fetch_one(sid)
  if r and r[STATE] == RUNNING and r[OWNER] == ARGV[3] then
    reply[#reply + 1], reply[#reply + 2] = sid, r[DELIVERY]
  end
end
return reply
