-- Dead letters: messages that were given up, rejected, not understood or not deliverable, taken out of reject and invalid pipes.
-- They outlive their jobs.
create table dead_letter (
    id           bigint generated always as identity primary key,
    identity     bytea   not null unique, -- a message that is delivered twice has the same
    time         bigint  not null,
    cause        text    not null,
    reason       text    not null,
    pipe         text    collate "C" not null, -- where it was found
    origin       text    collate "C",          -- where it came from
    worker       text,
    attempts     integer,
    partition_id text    collate "C",          -- null: it belongs to no job
    job_id       text    collate "C",
    incarnation  bigint,                       -- null: the first life of the job
    path         text,                         -- of the task; empty: the job's own
    label        text,
    headers      text,                         -- JSON; null when there are none
    body         bytea   not null,             -- or its beginning
    body_bytes   bigint  not null,             -- of the whole body
    bytes        bigint  not null              -- of the row, as they are summed up
);
create index dead_letter_of_job on dead_letter (partition_id, job_id, id);
create index dead_letter_by_time on dead_letter (time);

-- The sums of each job with dead letters, and, with empty ids, of all.
create table dead_letter_sum (
    partition_id text   collate "C" not null,
    job_id       text   collate "C" not null,
    letters      bigint not null,
    bytes        bigint not null,
    overflowed   bigint not null, -- above the bound of the job
    expired      bigint not null,
    primary key (partition_id, job_id)
);
insert into dead_letter_sum (partition_id, job_id, letters, bytes, overflowed, expired) values ('', '', 0, 0, 0, 0);

-- A message that is sent again may belong to no job.
alter table outbox alter column incarnation drop not null;
