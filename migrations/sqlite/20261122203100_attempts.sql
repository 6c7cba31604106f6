-- Failed attempts that another attempt follows: as rows, some of each task and of each job, and as a number.
alter table job add column failed_attempts bigint not null default 0;

create table attempt (
    incarnation integer not null references job on delete cascade,
    path        text    not null,
    round       integer not null,
    attempt     integer not null,
    since       integer not null,
    next_time   integer,          -- when the next attempt is due
    failure     text    not null, -- JSON
    primary key (incarnation, path, round, attempt)
) without rowid;
create index attempt_by_next_time on attempt (incarnation, round, next_time) where next_time is not null;
