-- The correlation id of the request that created the job; none for jobs that an earlier version created.
alter table job add column correlation_id text;
