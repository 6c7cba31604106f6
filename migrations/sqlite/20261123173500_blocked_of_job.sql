-- How many tasks of a job were let go, and since when the first of the others waits: read for each job of a list, without counting.
create index blocked_task_of_job on blocked_task (incarnation, state, time);
