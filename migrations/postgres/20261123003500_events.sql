-- What has happened to jobs, for those who watch all of them: a row for each row of `history`, and one for each job that is deleted.
-- Triggers write them, so that services of every version do. A row gets its id before its transaction commits, and another one with
-- a later id may commit first.
create table event (
    id              bigint generated always as identity primary key,
    time            bigint  not null,
    partition_id    text    collate "C" not null,
    job_id          text    collate "C" not null,
    from_status     text,
    to_status       text,             -- null: the job was deleted
    round           integer not null,
    actor           text,
    reason          text,
    correlation_id  text,
    prerequisite_id text
);
create index event_of_partition on event (partition_id, id);

-- One row: the last event that the sweeper has deleted.
create table swept_events (up_to bigint not null);
insert into swept_events (up_to) values (0);

create function event_of_history() returns trigger language plpgsql set search_path from current as $$
begin
    insert into event (time, partition_id, job_id, from_status, to_status, round, actor, reason, correlation_id, prerequisite_id)
        select new.time, partition_id, job_id, new.from_status, new.to_status, coalesce(new.round, 1), new.actor, left(new.reason, 300),
            new.correlation_id, new.prerequisite_id
        from job where incarnation = new.incarnation;
    perform pg_notify('batchwright', 'events');
    return null;
end $$;
create trigger event_of_history after insert on history for each row execute function event_of_history();

create function event_of_deletion() returns trigger language plpgsql set search_path from current as $$
begin
    insert into event (time, partition_id, job_id, from_status, round)
        values ((extract(epoch from clock_timestamp()) * 1000)::bigint, old.partition_id, old.job_id, old.status, coalesce(old.round, 1));
    perform pg_notify('batchwright', 'events');
    return null;
end $$;
create trigger event_of_deletion after delete on job for each row execute function event_of_deletion();
