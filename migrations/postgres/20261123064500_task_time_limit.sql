-- Jobs that say how long one attempt of a task may take. The workers learn it from the messages; this is what people see.
alter table job add column task_time_limit bigint; -- seconds; null = no limit, or a job of an earlier version
