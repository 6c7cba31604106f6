-- Who may do what: the tokens of the service, and whose the jobs are.

create table token (
    id           text    collate "C" not null primary key, -- the beginning of the token, which is no secret
    hash         text    not null,                 -- the SHA-256 of the token
    name         text    not null,                 -- whose it is
    access       text    not null,                 -- what its bearer may do, as JSON
    created_by   text,
    created_time bigint  not null,
    expire_time  bigint,
    used_time    bigint                            -- when it was last used, about
);

alter table job add column owner text    collate "C"; -- the subject that created it
