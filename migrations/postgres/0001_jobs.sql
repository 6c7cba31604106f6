-- Times are milliseconds since 1970. Each job's tasks have a table of their own, `task_<incarnation>`, made when the first
-- subtask is reported; no other table has a name like that. Ids are compared byte by byte.

create table job (
    incarnation      bigint  generated always as identity primary key,
    partition_id     text    collate "C" not null,
    job_id           text    collate "C" not null,
    first_life       boolean not null,
    name             text,
    description      text,
    external_data    text,
    content_hash     bytea   not null,
    on_failure       text    not null,
    status           text    not null,
    percentage       integer not null, -- hundredths of a percent
    completed_items  bigint  not null,
    failed_tasks     bigint  not null,
    failure_counts   text    not null, -- JSON: how often by kind
    own_task         text,             -- JSON: the job's own task while it waits to be tried again
    task_table       boolean not null,
    create_time      bigint  not null,
    last_update_time bigint  not null,
    finish_time      bigint,
    unique (partition_id, job_id)
) with (fillfactor = 70); -- a job's row changes with every flush, and no index on it does
create index job_by_time on job (partition_id, create_time, incarnation);

create table label (
    incarnation bigint not null references job on delete cascade,
    name        text   collate "C" not null,
    value       text,
    primary key (incarnation, name)
);

-- The failures that are kept in full.
create table failure (
    incarnation bigint  not null references job on delete cascade,
    path        text    collate "C" not null,
    since       bigint  not null,
    attempts    integer,
    failure     text    not null, -- JSON
    primary key (incarnation, path)
);

create table history (
    id          bigint generated always as identity primary key,
    incarnation bigint not null references job on delete cascade,
    time        bigint not null,
    from_status text,
    to_status   text   not null,
    actor       text   not null,
    reason      text   not null
);
create index history_of_job on history (incarnation, id);

-- Messages that wait for the broker.
create table outbox (
    id          bigint generated always as identity primary key,
    incarnation bigint not null references job on delete cascade,
    pipe        text   not null,
    body        bytea  not null,
    due_time    bigint not null
);
create index outbox_of_job on outbox (incarnation);

-- That a job id has lived before, for as long as messages of that life may be on their way.
create table past_life (
    partition_id text   collate "C" not null,
    job_id       text   collate "C" not null,
    incarnation  bigint not null,
    deleted_at   bigint not null,
    primary key (partition_id, job_id, incarnation)
);
create index past_life_by_time on past_life (deleted_at);

-- The sweeper's work list: tables of tasks that are over.
create table retired_table (
    incarnation  bigint primary key,
    droppable_at bigint not null
);
create index retired_table_by_time on retired_table (droppable_at);
