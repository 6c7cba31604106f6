-- What lists of jobs need. The collation `linguistic` is a function of the program; no index may use it.

create index job_by_status on job (partition_id, status, create_time, incarnation);
create index label_by_value on label (name, value, incarnation);
