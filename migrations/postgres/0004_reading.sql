-- What lists of jobs need.

-- The order in which people expect texts, whatever the locale of the server. `kk` = canonically equal texts are equal, as the
-- other stores have it.
create collation linguistic (provider = icu, locale = 'und-u-kk-true');

-- Equality is that of bytes.
alter table job alter name type text collate "C", alter status type text collate "C";
alter table label alter value type text collate "C";

-- A change of the status is rare, so that other changes of a job still leave its indexes alone.
create index job_by_status on job (partition_id, status, create_time, incarnation);
create index label_by_value on label (name, value, incarnation);

-- For pages of all jobs, or of most, in these orders. Made anew (`reindex`) after an update of ICU, of which the server warns.
create index job_by_name on job (partition_id, name collate linguistic, create_time, incarnation);
create index job_by_id on job (partition_id, job_id collate linguistic, create_time, incarnation);
