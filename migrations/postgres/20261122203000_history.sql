-- More of each transition. Null in the rows of an earlier version.
alter table history add column round integer;
alter table history add column correlation_id text;  -- of the request that caused it
alter table history add column prerequisite_id text; -- the job whose end caused it
alter table history add column left_out bigint;      -- in the first row of a job: how many rows after it were deleted
