-- The outputs that the service keeps. They are lines of blobs outside of the database; here stands which lines a blob has, and
-- which tasks have one. None of these tables refers to `job`: the sweeper removes what a deleted job has left, blobs first.

alter table job add column output_pipe text; -- the pipe of the outputs to keep; null = none are kept

-- One row for each job that has outputs.
create table kept_outputs (
    incarnation  bigint primary key,
    lines        bigint not null, -- the number of the next line
    bytes        bigint not null,
    done         bigint not null,
    failed       bigint not null,
    not_kept     bigint not null,
    reason       text,            -- why some are not kept
    waiting      text,            -- why some wait to be kept
    removed_time bigint           -- when they were given up; then no further ones are kept
) with (fillfactor = 70);

-- Lines `first_line` to `first_line + lines - 1` of a job.
create table kept_blob (
    incarnation bigint  not null,
    first_line  bigint  not null,
    lines       integer not null,
    bytes       bigint  not null,
    failed      boolean not null, -- whether the lines are failures; else they are results
    name        text    not null,
    time        bigint  not null,
    primary key (incarnation, first_line)
);

-- Bitmaps of the subtasks of a split whose result (`done`) or failure (`failed`) is kept; chunk -1 has the job's own task.
create table kept_task (
    incarnation bigint  not null,
    path        text    collate "C" not null,
    chunk       integer not null,
    done        bytea   not null,
    failed      bytea   not null,
    primary key (incarnation, path, chunk)
) with (fillfactor = 50);

-- The name of this database among others that keep their blobs in the same place.
create table blob_owner (
    name text primary key
);
insert into blob_owner (name) values (replace(gen_random_uuid()::text, '-', ''));
