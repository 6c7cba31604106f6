-- The order in which failures are read. There may be thousands of a job.
create index failure_by_time on failure (incarnation, since, path);
