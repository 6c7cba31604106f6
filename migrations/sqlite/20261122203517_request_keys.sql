-- The keys that clients gave to requests that create jobs, so that a repeated request creates none.
create table request_key (
    partition_id text not null,
    key          text not null,
    fingerprint  blob not null, -- of the request
    job_id       text not null,
    created_at   integer not null,
    primary key (partition_id, key)
) without rowid;
create index request_key_by_time on request_key (created_at);
