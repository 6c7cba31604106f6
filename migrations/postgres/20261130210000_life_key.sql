-- The key of a life of a job, which its workers bear in the status URL: 32 hexadecimal digits. Null: the job was created before there were
-- keys, and its workers bear none.
alter table job add column life_key text collate "C";
