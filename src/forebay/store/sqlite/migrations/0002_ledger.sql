-- The ledger: one record for every call that changed something, written in the transaction of the call.
-- `entry` is dense from 0, in the order of commits; `record` is a version byte and MessagePack (core.ledger).
CREATE TABLE ledger (entry INTEGER PRIMARY KEY, at INTEGER NOT NULL, record BLOB NOT NULL);

-- The entries held and their bytes, and the rule that says whether there are any, how long and how many.
ALTER TABLE head ADD COLUMN ledger_first INTEGER NOT NULL DEFAULT 0;
ALTER TABLE head ADD COLUMN ledger_next INTEGER NOT NULL DEFAULT 0;
ALTER TABLE head ADD COLUMN ledger_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE head ADD COLUMN ledger_on INTEGER NOT NULL DEFAULT 1;
ALTER TABLE head ADD COLUMN ledger_keep INTEGER NOT NULL DEFAULT 604800000000;
ALTER TABLE head ADD COLUMN ledger_keep_bytes INTEGER NOT NULL DEFAULT 1073741824;
