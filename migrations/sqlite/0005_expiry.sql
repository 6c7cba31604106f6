-- How long a job is kept once it has ended. The time is set once, when the job ends.
alter table job add column expiry text;           -- JSON: the policy by outcome; null = for ever
alter table job add column expiry_time integer;   -- when the job is to go
create index job_by_expiry on job (expiry_time) where expiry_time is not null;
