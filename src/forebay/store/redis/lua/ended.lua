-- Which of these jobs have ended or are gone: ids.
local sids, reply = decode(ARGV[3]), {}
local blobs = fetch(sids)
for i, sid in ipairs(sids) do
  if not blobs[i] or record(blobs[i])[STATE] > RUNNING then
    reply[#reply + 1] = sid
  end
end
return reply
