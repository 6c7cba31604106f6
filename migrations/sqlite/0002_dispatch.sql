-- When jobs start: after a delay, after other jobs, or when their partition is dispatched; and which relay sends a message.

alter table job add column delay integer not null default 0; -- seconds from the creation, or from the completion of the last prerequisite

create table new_outbox (
    id           integer primary key autoincrement,
    incarnation  integer not null references job on delete cascade,
    pipe         text    not null,
    body         blob    not null,
    due_time     integer, -- null = waits for the prerequisites of its job
    leased_until integer, -- until then a relay has it; one that dies gives it back by this
    suspended    boolean not null default false, -- its partition is
    paused       boolean not null default false  -- its job is
);
insert into new_outbox (id, incarnation, pipe, body, due_time) select id, incarnation, pipe, body, due_time from outbox order by id;
drop table outbox;
alter table new_outbox rename to outbox;
create index outbox_of_job on outbox (incarnation);
create index outbox_by_time on outbox (due_time, id) where not suspended and not paused;
create index outbox_by_lease on outbox (leased_until) where leased_until is not null;
create index outbox_suspended on outbox (incarnation) where suspended;

-- The jobs that a job still waits for. There need not be a job with the id of the prerequisite.
create table prerequisite (
    incarnation     integer not null references job on delete cascade, -- of the job that waits
    partition_id    text    not null,
    job_id          text    not null,
    prerequisite_id text    not null,
    primary key (incarnation, prerequisite_id)
) without rowid;
create index prerequisite_by_job on prerequisite (partition_id, job_id);
create index prerequisite_by_prerequisite on prerequisite (partition_id, prerequisite_id);
