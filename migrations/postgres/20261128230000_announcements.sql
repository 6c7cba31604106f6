-- The job (`partition:job`) that a row announces to the workers; null of a message for a pipe. Such a row is of no job, so that it
-- outlives the job, and has no due time: earlier versions leave it alone.
alter table outbox add column announces text;
create index outbox_announcements on outbox (id) where announces is not null;
