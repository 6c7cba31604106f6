-- The CRC-32 of each blob, which is compared where the blob is read whole. Null: an earlier version has written it.
alter table kept_blob add column crc32 bigint;
alter table upload_piece add column crc32 bigint;

alter table kept_outputs add column damaged text; -- a blob that was found to be not as it was written
