-- Owners of partitions and the window of a log: the number is taken, the statements are to come.
SELECT 1;
