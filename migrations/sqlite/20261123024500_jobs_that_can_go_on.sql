-- The jobs that can be taken up again, by age: among those that are Completed they are few. The condition is that of the statement,
-- word for word, because only then a database uses the index. A flush that counts no new failure need not touch it.
create index job_that_can_go_on on job (partition_id, create_time, incarnation)
    where case when status in ('Failed', 'Cancelled') then true when status = 'Completed' then failed_tasks > 0 else false end;
