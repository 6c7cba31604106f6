-- Jobs that are taken up again. A job that an earlier version created has no definition.
alter table job add column round integer not null default 1;

-- What a job was created from. Lists do not read it.
create table definition (
    incarnation   integer primary key references job on delete cascade,
    request       blob    not null, -- deflated: the request as the client sent it
    pipe          text    not null,
    start         blob    not null, -- deflated: the start message of the first round
    headers       text,             -- JSON; null when there are none
    prerequisites text    not null, -- JSON
    suspended     boolean not null
);

-- Jobs that have ended before their start message was sent, and the job with which they ended.
create table unstarted (
    incarnation integer primary key references job on delete cascade,
    fell_with   integer
);
create index unstarted_by_cause on unstarted (fell_with) where fell_with is not null;

-- The failures of earlier rounds.
create table past_failure (
    incarnation integer not null references job on delete cascade,
    round       integer not null,
    path        text    not null,
    since       integer not null,
    attempts    integer,
    failure     text    not null, -- JSON
    primary key (incarnation, path, round)
) without rowid;
