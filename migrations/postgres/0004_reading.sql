-- What lists of jobs need.

-- The order in which people expect texts, whatever the locale of the server. `kk` = canonically equal texts are equal, as the
-- other stores have it. No index uses it: an index would have to be made anew with every new version of ICU.
create collation linguistic (provider = icu, locale = 'und-u-kk-true');

-- Equality is that of bytes.
alter table job alter name type text collate "C", alter status type text collate "C";
alter table label alter value type text collate "C";

-- A change of the status is rare, so that other changes of a job still leave its indexes alone.
create index job_by_status on job (partition_id, status, create_time, incarnation);
create index label_by_value on label (name, value, incarnation);
