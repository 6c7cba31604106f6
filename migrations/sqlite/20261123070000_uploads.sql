-- Sources that clients have sent to the service. Their bytes are in blobs outside of the database; here stands which blobs have which
-- bytes. None of these tables refers to `job`: the sweeper removes what a deleted job has left, blobs first.

create table upload (
    number       integer primary key autoincrement, -- also that of the group of its blobs
    id           text    not null unique,
    partition_id text    not null,
    read_key     text    not null, -- without which nobody reads it
    created_time integer not null,
    touched_time integer not null, -- when it last got bytes, was committed, or was named by a new job
    bytes        integer not null,
    pieces       integer not null,
    digest       text,             -- the SHA-256 of all bytes; null = further ones may follow
    doomed       boolean not null  -- deleted, but its blobs are still there
);
create index upload_of_partition on upload (partition_id, number);
create index upload_by_time on upload (touched_time);
create index upload_doomed on upload (number) where doomed;

create table upload_piece (
    number     integer not null,
    first_byte integer not null,
    bytes      integer not null,
    name       text    not null, -- of the blob
    primary key (number, first_byte)
) without rowid;

-- The jobs that read an upload.
create table upload_use (
    number      integer not null,
    incarnation integer not null,
    primary key (number, incarnation)
) without rowid;

-- The sums of each partition, and, with an empty id, of all.
create table upload_sum (
    partition_id text    primary key,
    uploads      integer not null,
    bytes        integer not null
) without rowid;
