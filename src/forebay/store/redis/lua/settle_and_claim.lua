-- Settle, then claim: groups, owner, length of the lease, wants, then the results that the settlements keep.
local replies = settle(decode(ARGV[3]))
next_record()
local before = answered()
local sids, blobs
if before then
  sids, blobs = claimed_before(before)
else
  sids, blobs = claim(decode(ARGV[6]), ARGV[4], tonumber(ARGV[5]))
  answer({ now, unpack(sids) })
end
finish()
return { replies, pictures(sids, blobs) }
