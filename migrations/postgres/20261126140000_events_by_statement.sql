-- The events of all rows that a statement adds to `history` are written together: one flush ends many small jobs.
-- The plan of the function is kept. It must look jobs up by the index even if `job` was small when it was made: hence the limit and the setting.
create or replace function event_of_history() returns trigger language plpgsql set search_path from current set enable_seqscan = off as $$
begin
    insert into event (time, partition_id, job_id, from_status, to_status, round, actor, reason, correlation_id, prerequisite_id)
        select added.time, partition_id, job_id, added.from_status, added.to_status, coalesce(added.round, 1), added.actor,
            left(added.reason, 300), added.correlation_id, added.prerequisite_id
        from added cross join lateral (select * from job where incarnation = added.incarnation limit 1) as job order by added.id;
    if found then
        perform pg_notify('batchwright', 'events');
    end if;
    return null;
end $$;
drop trigger event_of_history on history;
create trigger event_of_history after insert on history referencing new table as added
    for each statement execute function event_of_history();
