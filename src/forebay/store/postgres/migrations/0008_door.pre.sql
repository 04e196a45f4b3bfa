-- Quiet times, uniqueness by state, shedding and brokers: the number is taken, the statements are to come.
SELECT 1;
