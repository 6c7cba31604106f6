-- The jobs of which tasks wait for conditions, which are few: those that are shown as Blocked are among them. A flush of another job
-- need not touch it.
create index job_with_blocked_tasks on job (partition_id) where blocked_tasks > 0;
