-- When jobs start: after a delay, after other jobs, or when their partition is dispatched; and which relay sends a message.

alter table job add delay bigint not null default 0; -- seconds from the creation, or from the completion of the last prerequisite

-- A message without a due time waits for the prerequisites of its job.
alter table outbox alter due_time drop not null;
-- Until then a relay has it. One that dies gives it back by this.
alter table outbox add leased_until bigint;
alter table outbox add suspended boolean not null default false; -- its partition is
alter table outbox add paused boolean not null default false;    -- its job is
create index outbox_by_time on outbox (due_time, id) where not suspended and not paused;
create index outbox_by_lease on outbox (leased_until) where leased_until is not null;
create index outbox_suspended on outbox (incarnation) where suspended;

-- The jobs that a job still waits for. There need not be a job with the id of the prerequisite.
create table prerequisite (
    incarnation     bigint not null references job on delete cascade, -- of the job that waits
    partition_id    text   collate "C" not null,
    job_id          text   collate "C" not null,
    prerequisite_id text   collate "C" not null,
    primary key (incarnation, prerequisite_id)
);
create index prerequisite_by_job on prerequisite (partition_id, job_id);
create index prerequisite_by_prerequisite on prerequisite (partition_id, prerequisite_id);
