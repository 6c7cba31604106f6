-- Jobs that say when their failed tasks run again. Workers of earlier versions do as they are set.
alter table job add column retry_policy text; -- null = the workers' own
