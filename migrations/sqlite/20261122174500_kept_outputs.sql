-- The outputs that the service keeps. They are lines of blobs outside of the database; here stands which lines a blob has, and
-- which tasks have one. None of these tables refers to `job`: the sweeper removes what a deleted job has left, blobs first.

alter table job add column output_pipe text; -- the pipe of the outputs to keep; null = none are kept

-- One row for each job that has outputs.
create table kept_outputs (
    incarnation  integer primary key,
    lines        integer not null, -- the number of the next line
    bytes        integer not null,
    done         integer not null,
    failed       integer not null,
    not_kept     integer not null,
    reason       text,             -- why some are not kept
    waiting      text,             -- why some wait to be kept
    removed_time integer           -- when they were given up; then no further ones are kept
);

-- Lines `first_line` to `first_line + lines - 1` of a job.
create table kept_blob (
    incarnation integer not null,
    first_line  integer not null,
    lines       integer not null,
    bytes       integer not null,
    failed      boolean not null, -- whether the lines are failures; else they are results
    name        text    not null,
    time        integer not null,
    primary key (incarnation, first_line)
) without rowid;

-- Bitmaps of the subtasks of a split whose result (`done`) or failure (`failed`) is kept; chunk -1 has the job's own task.
create table kept_task (
    incarnation integer not null,
    path        text    not null,
    chunk       integer not null,
    done        blob    not null,
    failed      blob    not null,
    primary key (incarnation, path, chunk)
) without rowid;

-- The name of this database among others that keep their blobs in the same place.
create table blob_owner (
    name text primary key
) without rowid;
insert into blob_owner (name) values (lower(hex(randomblob(16))));
