-- Tasks of paused jobs, as they were taken from the pipes. They stay here until the job is resumed or over.
create table stowed_task (
    id          integer primary key autoincrement,
    incarnation integer not null references job on delete cascade,
    pipe        text    not null, -- where it goes back to
    body        blob    not null,
    headers     text              -- JSON; null when there are none
);
create index stowed_task_of_job on stowed_task (incarnation, id);

-- Jobs that are not paused any more and have stowed tasks left: they go back to their pipes, or are dropped when the job is over.
create table unstowing (
    incarnation integer primary key references job on delete cascade
);

alter table outbox add column headers text; -- JSON; null when there are none
