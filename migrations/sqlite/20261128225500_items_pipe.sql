-- The pipe to which the batch of a job sends its items. Null for a job that is no batch, and for one of an earlier version.
alter table job add column items_pipe text;
