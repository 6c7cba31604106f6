-- Dead letters: messages that were given up, rejected, not understood or not deliverable, taken out of reject and invalid pipes.
-- They outlive their jobs.
create table dead_letter (
    id           integer primary key autoincrement,
    identity     blob    not null unique, -- a message that is delivered twice has the same
    time         integer not null,
    cause        text    not null,
    reason       text    not null,
    pipe         text    not null, -- where it was found
    origin       text,             -- where it came from
    worker       text,
    attempts     integer,
    partition_id text,             -- null: it belongs to no job
    job_id       text,
    incarnation  integer,          -- null: the first life of the job
    path         text,             -- of the task; empty: the job's own
    label        text,
    headers      text,             -- JSON; null when there are none
    body         blob    not null, -- or its beginning
    body_bytes   integer not null, -- of the whole body
    bytes        integer not null  -- of the row, as they are summed up
);
create index dead_letter_of_job on dead_letter (partition_id, job_id, id);
create index dead_letter_by_time on dead_letter (time);

-- The sums of each job with dead letters, and, with empty ids, of all.
create table dead_letter_sum (
    partition_id text    not null,
    job_id       text    not null,
    letters      integer not null,
    bytes        integer not null,
    overflowed   integer not null, -- above the bound of the job
    expired      integer not null,
    primary key (partition_id, job_id)
) without rowid;
insert into dead_letter_sum (partition_id, job_id, letters, bytes, overflowed, expired) values ('', '', 0, 0, 0, 0);

-- A message that is sent again may belong to no job.
create table new_outbox (
    id           integer primary key autoincrement,
    incarnation  integer references job on delete cascade,
    pipe         text    not null,
    body         blob    not null,
    due_time     integer, -- null = waits for the prerequisites of its job
    leased_until integer, -- until then a relay has it; one that dies gives it back by this
    suspended    boolean not null default false, -- its partition is
    paused       boolean not null default false, -- its job is
    headers      text     -- JSON; null when there are none
);
insert into new_outbox (id, incarnation, pipe, body, due_time, leased_until, suspended, paused, headers)
    select id, incarnation, pipe, body, due_time, leased_until, suspended, paused, headers from outbox order by id;
drop table outbox;
alter table new_outbox rename to outbox;
create index outbox_of_job on outbox (incarnation);
create index outbox_by_time on outbox (due_time, id) where not suspended and not paused;
create index outbox_by_lease on outbox (leased_until) where leased_until is not null;
create index outbox_suspended on outbox (incarnation) where suspended;
