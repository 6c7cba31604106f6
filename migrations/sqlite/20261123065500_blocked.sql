-- Conditions that tasks wait for. All tasks with the same key wait together, whatever their job and pipe.
create table wait_condition (
    condition_key text    primary key,
    condition     text    not null, -- JSON, as the first of its tasks has stated it
    code          text    not null,
    since         integer not null,
    tests         integer not null,
    tested_time   integer,          -- of the last test; null before the first
    result        text,             -- of the last test
    phase         text    not null,
    pace          integer not null, -- how many tasks the last release has let go
    next_time     integer not null, -- when a job service looks at it next
    heard         text,             -- what a task that was let go has done since
    news          integer not null, -- how often anything was heard
    lease         integer not null, -- the number of the claim on it; an older claim counts no more
    leased_until  integer           -- until then a job service has it
);
create index wait_condition_by_time on wait_condition (next_time);
create index wait_condition_by_lease on wait_condition (leased_until) where leased_until is not null;

-- Tasks that wait, or that were let go and have not ended since.
create table blocked_task (
    id            integer primary key autoincrement,
    incarnation   integer not null references job on delete cascade,
    path          text    not null, -- of the task; empty: the job's own
    identity      blob    not null, -- of the message, which passes through several pipes as one task
    round         integer not null,
    blocks        integer not null, -- how often it was blocked
    condition_key text    not null,
    state         text    not null, -- waiting, canary or released
    time          integer not null, -- since when it waits
    pipe          text    not null, -- where it goes back to
    body          blob,             -- null once it was let go
    headers       text,             -- JSON; null when there are none
    unique (incarnation, path, identity)
);
create index blocked_task_waiting on blocked_task (condition_key, pipe, id) where state = 'waiting';

alter table job add column blocked_tasks integer not null default 0; -- its rows in blocked_task
