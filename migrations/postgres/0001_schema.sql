-- The tables of a job service in PostgreSQL. SQLite has the same tables and columns.
--
-- This file never changes: a database remembers its checksum. A change is a further migration.
--
-- - A time is a number of milliseconds since 1970, and an index `…_by_time` finds what is due.
-- - An id, a name, a pipe or a path has the collation "C": it is compared byte by byte, on every
--   server alike.
-- - An incarnation is the number of one life of a job. A job that is created again under the id of
--   a deleted one has a new incarnation.
-- - The path of a task is its place below the job: `2.1` is part 1 of part 2. The path of the job's
--   own task is empty.
-- - Each job with subtasks has a table of its own, `task_<incarnation>`, which is created when the
--   first subtask is reported. No other table has a name like that.

-- The order in which people expect texts, whatever the locale of the server. With `kk`, texts that
-- are canonically equal are equal, as in SQLite. After an update of ICU, of which the server warns,
-- the indexes that use the collation must be rebuilt (`reindex`).
create collation linguistic (provider = icu, locale = 'und-u-kk-true');


-- Jobs ------------------------------------------------------------------------------------------

-- A flush of tracking events changes rows of this table. It changes a column with an index only if
-- a status changes or a task fails or waits, and finds room for the new row beside the old one.
create table job (
    incarnation      bigint  generated always as identity primary key,
    partition_id     text    collate "C" not null,
    job_id           text    collate "C" not null,
    -- Whether no life of this id came before. Task ids of a first life may omit the incarnation.
    first_life       boolean not null,
    -- How often the job was started: 1, and 1 more for each retry by a person.
    round            integer not null default 1,

    -- What the request says.
    name             text    collate "C",
    description      text,
    external_data    text,
    content_hash     bytea   not null,               -- a repeated request has the same
    delay            bigint  not null default 0,     -- seconds from creation or release to start
    on_failure       text    not null,               -- continue or stop
    tolerance        text,                           -- JSON: how many items may fail; null: none
    expiry           text,                           -- JSON: time to keep it, by outcome
    retry_policy     text,                           -- null: that of the workers
    task_time_limit  bigint,                         -- seconds for one attempt of a task
    without_target   boolean not null default false, -- it names no pipe for the outputs
    output_pipe      text,                           -- where outputs to keep go; null: not kept
    items_pipe       text,                           -- where a batch sends items; null: no batch
    correlation_id   text    collate "C",            -- of the request

    -- What is known of the progress.
    status           text    collate "C" not null,
    percentage       integer not null,               -- in hundredths of a percent
    completed_items  bigint  not null,
    failed_tasks     bigint  not null,
    failed_splits    bigint  not null default 0,     -- those of failed_tasks that are no items
    failed_attempts  bigint  not null default 0,     -- that another attempt follows, in all rounds
    blocked_tasks    bigint  not null default 0,     -- its rows in blocked_task
    failure_counts   text    not null,               -- JSON: number of failures by kind
    progress         text,                           -- JSON: counts of items, and when they ended
    own_task         text,                           -- JSON: its own task while that is retried
    task_table       boolean not null,               -- whether task_<incarnation> was created

    create_time      bigint  not null,
    last_update_time bigint  not null,
    finish_time      bigint,                         -- null: the job has not ended
    expiry_time      bigint,                         -- when to delete it; set when it ends
    unique (partition_id, job_id)
) with (fillfactor = 70);

-- For pages of jobs, in each order that is common.
create index job_by_time on job (partition_id, create_time, incarnation);
create index job_by_status on job (partition_id, status, create_time, incarnation);
create index job_by_name on job (partition_id, name collate linguistic, create_time, incarnation);
create index job_by_id on job (partition_id, job_id collate linguistic, create_time, incarnation);

-- For few jobs among many.
create index job_unfinished on job (incarnation) where finish_time is null;
create index job_by_expiry on job (expiry_time) where expiry_time is not null;
create index job_with_blocked_tasks on job (partition_id) where blocked_tasks > 0;
-- Jobs that a person can retry. The condition is word for word that of the query; otherwise the
-- database does not use the index.
create index job_that_can_go_on on job (partition_id, create_time, incarnation)
    where case when status in ('Failed', 'Cancelled') then true when status = 'Completed' then failed_tasks > 0 else false end;

create table label (
    incarnation bigint not null references job on delete cascade,
    name        text   collate "C" not null,
    value       text   collate "C",
    primary key (incarnation, name)
);
create index label_by_value on label (name, value, incarnation);

-- What a job was created from. Lists do not read it.
create table definition (
    incarnation   bigint  primary key references job on delete cascade,
    request       bytea   not null, -- deflated: the request as the client sent it
    pipe          text    not null, -- where the start message goes
    start         bytea   not null, -- deflated: the start message of the first round
    headers       text,             -- JSON: of the start message; null: none
    prerequisites text    not null, -- JSON
    suspended     boolean not null  -- whether its partition was suspended
);
-- The database must not try to compress what is deflated.
alter table definition alter request set storage external, alter start set storage external;

-- Keys that clients gave to requests that create jobs, so that a repeated request creates no job.
create table request_key (
    partition_id text   collate "C" not null,
    key          text   collate "C" not null,
    fingerprint  bytea  not null, -- of the request
    job_id       text   not null,
    created_at   bigint not null,
    primary key (partition_id, key)
);
create index request_key_by_time on request_key (created_at);

-- Ids of deleted jobs, kept for as long as messages of the deleted life may be on their way.
create table past_life (
    partition_id text   collate "C" not null,
    job_id       text   collate "C" not null,
    incarnation  bigint not null,
    deleted_at   bigint not null,
    primary key (partition_id, job_id, incarnation)
);
create index past_life_by_time on past_life (deleted_at);


-- Start of jobs, and messages to the broker -----------------------------------------------------

-- The jobs that a job still waits for. A job with the id of the prerequisite need not exist.
create table prerequisite (
    incarnation     bigint not null references job on delete cascade, -- of the job that waits
    partition_id    text   collate "C" not null,
    job_id          text   collate "C" not null,
    prerequisite_id text   collate "C" not null,
    primary key (incarnation, prerequisite_id)
);
create index prerequisite_by_job on prerequisite (partition_id, job_id);
create index prerequisite_by_prerequisite on prerequisite (partition_id, prerequisite_id);

-- Messages that wait to be sent: written in the transaction that causes them, and deleted once the
-- broker has confirmed them.
create table outbox (
    id           bigint  generated always as identity primary key,
    incarnation  bigint  references job on delete cascade, -- null: the message is of no job
    pipe         text    not null,
    body         bytea   not null,
    headers      text,                           -- JSON; null: none
    due_time     bigint,                         -- null: waits for prerequisites of the job
    leased_until bigint,                         -- a relay has it until then, also if it dies
    suspended    boolean not null default false, -- its partition is suspended
    paused       boolean not null default false, -- its job is paused
    -- The job (`partition:job`) that the row announces to all workers. Such a row is no message for
    -- a pipe: it has no incarnation, so that it outlives the job, and no due time.
    announces    text
);
create index outbox_of_job on outbox (incarnation);
create index outbox_by_time on outbox (due_time, id) where not suspended and not paused;
create index outbox_by_lease on outbox (leased_until) where leased_until is not null;
create index outbox_suspended on outbox (incarnation) where suspended;
create index outbox_announcements on outbox (id) where announces is not null;

-- Jobs that ended before their start message was sent.
create table unstarted (
    incarnation bigint primary key references job on delete cascade,
    fell_with   bigint -- the job with which it ended, because it waited for that one
);
create index unstarted_by_cause on unstarted (fell_with) where fell_with is not null;

-- Tasks of paused jobs, taken from their pipes. They stay here until the job is resumed or ends.
create table stowed_task (
    id          bigint generated always as identity primary key,
    incarnation bigint not null references job on delete cascade,
    pipe        text   not null, -- where it returns to
    body        bytea  not null,
    headers     text             -- JSON; null: none
);
create index stowed_task_of_job on stowed_task (incarnation, id);

-- Jobs that are no longer paused and still have stowed tasks. The tasks return to their pipes, or
-- are dropped if the job has ended.
create table unstowing (
    incarnation bigint primary key references job on delete cascade
);

-- How many shards of a tracking pipe were ever in use. Tracking workers read so many, because a job
-- keeps the shard that it began with.
create table tracking_shards (
    pipe   text    collate "C" primary key,
    shards integer not null
);


-- Progress of jobs ------------------------------------------------------------------------------

-- The latest changes of each job's status, and the first.
create table history (
    id              bigint generated always as identity primary key,
    incarnation     bigint not null references job on delete cascade,
    time            bigint not null,
    from_status     text,             -- null: the job was created
    to_status       text   not null,
    round           integer not null,
    actor           text   not null,
    reason          text   not null,
    correlation_id  text,             -- of the request that caused it
    prerequisite_id text,             -- the job whose end caused it
    left_out        bigint            -- in the first row: the number of deleted rows after it
);
create index history_of_job on history (incarnation, id);

-- The curve of a job's progress: the number of ended items at up to 240 moments.
create table curve (
    incarnation bigint primary key references job on delete cascade,
    points      text   not null -- `time,done,failed;` for each moment
) with (fillfactor = 50);
-- Flushes append to it, so it must not be compressed.
alter table curve alter points set storage external;

-- Failures of the current round: some of each job.
create table failure (
    incarnation bigint  not null references job on delete cascade,
    path        text    collate "C" not null,
    since       bigint  not null,
    attempts    integer,          -- null: no retry was reported
    failure     text    not null, -- JSON
    primary key (incarnation, path)
);
create index failure_by_time on failure (incarnation, since, path);

-- Failures of earlier rounds.
create table past_failure (
    incarnation bigint  not null references job on delete cascade,
    round       integer not null,
    path        text    collate "C" not null,
    since       bigint  not null,
    attempts    integer,          -- null: no retry was reported
    failure     text    not null, -- JSON
    primary key (incarnation, path, round)
);

-- Failed attempts that another attempt follows: some of each task and of each job.
create table attempt (
    incarnation bigint  not null references job on delete cascade,
    path        text    collate "C" not null,
    round       integer not null,
    attempt     integer not null,
    since       bigint  not null,
    next_time   bigint,           -- when the next attempt is due
    failure     text    not null, -- JSON
    primary key (incarnation, path, round, attempt)
);
create index attempt_by_next_time on attempt (incarnation, round, next_time)
    where next_time is not null;

-- Results of parts of tasks. A task that runs again does not repeat these parts. The sweeper
-- deletes the rows, some at a time, once the job cannot be retried; so nothing refers to the job.
create table memo (
    incarnation bigint not null,
    path        text   collate "C" not null, -- of the task
    name        text   collate "C" not null, -- of the part
    result      text   not null,             -- JSON
    primary key (incarnation, path, name)
);

-- The sums of each job with memos.
create table memo_sum (
    incarnation bigint primary key,
    memos       bigint not null,
    bytes       bigint not null
);

-- Task tables (`task_<incarnation>`) that the sweeper will drop.
create table retired_table (
    incarnation  bigint primary key,
    droppable_at bigint not null
);
create index retired_table_by_time on retired_table (droppable_at);


-- Tasks that wait for a condition ---------------------------------------------------------------

-- Conditions. All tasks with the same key wait together, whatever their job and pipe.
create table wait_condition (
    condition_key text    collate "C" primary key,
    condition     text    not null, -- JSON, as the first of its tasks stated it
    code          text    collate "C" not null,
    since         bigint  not null, -- since when tasks wait for it
    tests         integer not null, -- the number of tests
    tested_time   bigint,           -- of the last test; null: not tested yet
    result        text,             -- of the last test
    phase         text    not null, -- testing, canary, releasing, failing or idle
    pace          integer not null, -- the number of tasks that the last release let go
    next_time     bigint  not null, -- when a job service looks at it next
    heard         text,             -- what a released task did since: ended, again or elsewhere
    news          bigint  not null, -- how often that was reported
    lease         bigint  not null, -- the number of the claim; an older claim is void
    leased_until  bigint            -- a job service has it until then, also if it dies
);
create index wait_condition_by_time on wait_condition (next_time);
create index wait_condition_by_lease on wait_condition (leased_until)
    where leased_until is not null;

-- Tasks that wait, or that were released and have not ended since.
create table blocked_task (
    id            bigint  generated always as identity primary key,
    incarnation   bigint  not null references job on delete cascade,
    path          text    collate "C" not null,
    identity      bytea   not null, -- of the message: a task passes through several pipes
    round         integer not null,
    blocks        integer not null, -- how often the task was blocked
    condition_key text    collate "C" not null,
    state         text    not null, -- waiting, canary or released
    time          bigint  not null, -- since when it waits
    pipe          text    collate "C" not null, -- where it returns to
    body          bytea,            -- null: it was released
    headers       text,             -- JSON; null: none
    unique (incarnation, path, identity)
);
create index blocked_task_waiting on blocked_task (condition_key, pipe, id) where state = 'waiting';
create index blocked_task_canary on blocked_task (condition_key) where state = 'canary';
-- Counts the released tasks of a job, and finds since when the first waits, for each job of a list.
create index blocked_task_of_job on blocked_task (incarnation, state, time);


-- Dead letters ----------------------------------------------------------------------------------

-- Messages out of reject and invalid pipes: given up, rejected, not understood or not deliverable.
-- They outlive their jobs.
create table dead_letter (
    id           bigint  generated always as identity primary key,
    identity     bytea   not null unique, -- the same if the message is delivered twice
    time         bigint  not null,
    cause        text    not null,
    reason       text    not null,
    pipe         text    collate "C" not null, -- where it was found
    origin       text    collate "C",     -- the pipe that it came from
    worker       text,                    -- that put it there
    attempts     integer,
    partition_id text    collate "C",     -- null: it belongs to no job
    job_id       text    collate "C",
    incarnation  bigint,                  -- null: the first life of the job
    path         text,                    -- of the task
    label        text,                    -- of the item
    headers      text,                    -- JSON; null: none
    body         bytea   not null,        -- or only its beginning
    body_bytes   bigint  not null,        -- of the whole body
    bytes        bigint  not null         -- of the row, as the sums count them
);
create index dead_letter_of_job on dead_letter (partition_id, job_id, id);
create index dead_letter_by_time on dead_letter (time);

-- The sums of each job with dead letters. The row with empty ids has the sums of all letters.
create table dead_letter_sum (
    partition_id text   collate "C" not null,
    job_id       text   collate "C" not null,
    letters      bigint not null,
    bytes        bigint not null,
    overflowed   bigint not null, -- letters that were deleted because the job has too many
    expired      bigint not null, -- letters that were deleted because of their age
    primary key (partition_id, job_id)
);
insert into dead_letter_sum (partition_id, job_id, letters, bytes, overflowed, expired)
    values ('', '', 0, 0, 0, 0);


-- Blobs: outputs that are kept, and uploaded sources --------------------------------------------

-- Blobs are files or objects outside the database; these tables say what each of them contains.
-- They do not refer to `job`: of a deleted job, the sweeper deletes first the blobs, then the rows.

-- The name of this database among all that keep blobs in the same place.
create table blob_owner (
    name text primary key
);
insert into blob_owner (name) values (replace(gen_random_uuid()::text, '-', ''));

-- Each job with outputs, in numbers.
create table kept_outputs (
    incarnation  bigint primary key,
    lines        bigint not null, -- the number of the next line
    bytes        bigint not null,
    done         bigint not null, -- kept results
    failed       bigint not null, -- kept failures
    not_kept     bigint not null, -- outputs that were dropped
    reason       text,            -- why outputs were dropped
    waiting      text,            -- why outputs wait to be kept
    damaged      text,            -- the name of a blob that was found changed
    removed_time bigint           -- when the outputs were deleted; no further ones are kept
) with (fillfactor = 70);

-- A blob with the lines `first_line` to `first_line + lines - 1` of a job.
create table kept_blob (
    incarnation bigint  not null,
    first_line  bigint  not null,
    lines       integer not null,
    bytes       bigint  not null,
    failed      boolean not null, -- true: the lines are failures; false: results
    name        text    not null,
    time        bigint  not null,
    crc32       bigint  not null, -- compared when the whole blob is read
    primary key (incarnation, first_line)
);

-- Bitmaps of the subtasks of a split whose outputs are kept, in chunks. Chunk -1 has the bit of the
-- job's own task.
create table kept_task (
    incarnation bigint  not null,
    path        text    collate "C" not null, -- of the split
    chunk       integer not null,
    done        bytea   not null, -- whose result is kept
    failed      bytea   not null, -- whose failure is kept
    primary key (incarnation, path, chunk)
) with (fillfactor = 50);

-- Sources that clients have uploaded.
create table upload (
    number       bigint  generated by default as identity primary key, -- names its blobs, too
    id           text    collate "C" not null unique,
    partition_id text    collate "C" not null,
    read_key     text    not null, -- required to read it
    created_time bigint  not null,
    touched_time bigint  not null, -- when it was last extended, committed, or named by a new job
    bytes        bigint  not null,
    pieces       bigint  not null, -- the number of its blobs
    digest       text,             -- the SHA-256 of all bytes; null: not committed yet
    doomed       boolean not null  -- it is deleted, and its blobs are still there
) with (fillfactor = 50);
create index upload_of_partition on upload (partition_id, number);
create index upload_by_time on upload (touched_time);
create index upload_doomed on upload (number) where doomed;

-- The blobs of an upload, in the order of their bytes.
create table upload_piece (
    number     bigint not null, -- of the upload
    first_byte bigint not null,
    bytes      bigint not null,
    name       text   not null,
    crc32      bigint not null, -- compared when the whole blob is read
    primary key (number, first_byte)
);

-- The jobs that read an upload.
create table upload_use (
    number      bigint not null,
    incarnation bigint not null,
    primary key (number, incarnation)
);

-- The sums of each partition. The row with an empty id has the sums of all.
create table upload_sum (
    partition_id text   collate "C" primary key,
    uploads      bigint not null,
    bytes        bigint not null -- and 5 KiB for each upload and each piece
);


-- Events ----------------------------------------------------------------------------------------

-- Changes of all jobs, for those who watch them: a row for each row of `history`, and one for each
-- deleted job. Triggers write the rows, so that services of every version do. A row gets its id
-- before its transaction commits, and a row with a higher id may be committed first.
create table event (
    id              bigint  generated always as identity primary key,
    time            bigint  not null,
    partition_id    text    collate "C" not null,
    job_id          text    collate "C" not null,
    from_status     text,             -- null: the job was created
    to_status       text,             -- null: the job was deleted
    round           integer not null,
    actor           text,
    reason          text,
    correlation_id  text,
    prerequisite_id text
);
create index event_of_partition on event (partition_id, id);

-- One row: the id of the last event that the sweeper deleted.
create table swept_events (up_to bigint not null);
insert into swept_events (up_to) values (0);

-- Runs once per statement: a flush that ends many jobs writes all events together. The database
-- keeps the plan of the function, perhaps since `job` was small. The limit and the setting ensure
-- that it finds jobs by their index.
create function event_of_history() returns trigger language plpgsql set search_path from current set enable_seqscan = off as $$
begin
    insert into event (time, partition_id, job_id, from_status, to_status, round, actor, reason, correlation_id, prerequisite_id)
        select added.time, partition_id, job_id, added.from_status, added.to_status, added.round, added.actor,
            left(added.reason, 300), added.correlation_id, added.prerequisite_id
        from added cross join lateral (select * from job where incarnation = added.incarnation limit 1) as job order by added.id;
    if found then
        perform pg_notify('batchwright', 'events');
    end if;
    return null;
end $$;
create trigger event_of_history after insert on history referencing new table as added
    for each statement execute function event_of_history();

-- The service adds who deleted the job, and why.
create function event_of_deletion() returns trigger language plpgsql set search_path from current as $$
begin
    insert into event (time, partition_id, job_id, from_status, round)
        values ((extract(epoch from clock_timestamp()) * 1000)::bigint, old.partition_id, old.job_id, old.status, old.round);
    perform pg_notify('batchwright', 'events');
    return null;
end $$;
create trigger event_of_deletion after delete on job for each row execute function event_of_deletion();
