-- Times are milliseconds since 1970. Each job's tasks have a table of their own, `task_<incarnation>`, made when the first
-- subtask is reported; no other table has a name like that.

create table job (
    incarnation      integer primary key autoincrement,
    partition_id     text    not null,
    job_id           text    not null,
    first_life       boolean not null,
    name             text,
    description      text,
    external_data    text,
    content_hash     blob    not null,
    on_failure       text    not null,
    status           text    not null,
    percentage       integer not null, -- hundredths of a percent
    completed_items  integer not null,
    failed_tasks     integer not null,
    failure_counts   text    not null, -- JSON: how often by kind
    own_task         text,             -- JSON: the job's own task while it waits to be tried again
    task_table       boolean not null,
    create_time      integer not null,
    last_update_time integer not null,
    finish_time      integer,
    unique (partition_id, job_id)
);
create index job_by_time on job (partition_id, create_time, incarnation);

create table label (
    incarnation integer not null references job on delete cascade,
    name        text    not null,
    value       text,
    primary key (incarnation, name)
) without rowid;

-- The failures that are kept in full.
create table failure (
    incarnation integer not null references job on delete cascade,
    path        text    not null,
    since       integer not null,
    attempts    integer,
    failure     text    not null, -- JSON
    primary key (incarnation, path)
) without rowid;

create table history (
    id          integer primary key,
    incarnation integer not null references job on delete cascade,
    time        integer not null,
    from_status text,
    to_status   text    not null,
    actor       text    not null,
    reason      text    not null
);
create index history_of_job on history (incarnation, id);

-- Messages that wait for the broker.
create table outbox (
    id          integer primary key autoincrement,
    incarnation integer not null references job on delete cascade,
    pipe        text    not null,
    body        blob    not null,
    due_time    integer not null
);
create index outbox_of_job on outbox (incarnation);

-- That a job id has lived before, for as long as messages of that life may be on their way.
create table past_life (
    partition_id text    not null,
    job_id       text    not null,
    incarnation  integer not null,
    deleted_at   integer not null,
    primary key (partition_id, job_id, incarnation)
) without rowid;
create index past_life_by_time on past_life (deleted_at);

-- The sweeper's work list: tables of tasks that are over.
create table retired_table (
    incarnation  integer primary key,
    droppable_at integer not null
);
create index retired_table_by_time on retired_table (droppable_at);
