-- What has happened to jobs, for those who watch all of them: a row for each row of `history`, and one for each job that is deleted.
create table event (
    id              integer primary key autoincrement,
    time            integer not null,
    partition_id    text    not null,
    job_id          text    not null,
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
create table swept_events (up_to integer not null);
insert into swept_events (up_to) values (0);

create trigger event_of_history after insert on history begin
    insert into event (time, partition_id, job_id, from_status, to_status, round, actor, reason, correlation_id, prerequisite_id)
        select new.time, partition_id, job_id, new.from_status, new.to_status, coalesce(new.round, 1), new.actor, substr(new.reason, 1, 300),
            new.correlation_id, new.prerequisite_id
        from job where incarnation = new.incarnation;
end;

create trigger event_of_deletion after delete on job begin
    insert into event (time, partition_id, job_id, from_status, round)
        values (cast(unixepoch('subsec') * 1000 as integer), old.partition_id, old.job_id, old.status, coalesce(old.round, 1));
end;
