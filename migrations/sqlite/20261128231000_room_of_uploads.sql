-- The sums have the room that uploads take, not their bytes alone: each upload, and each of its pieces, takes 5 KiB more.
update upload_sum set bytes = bytes + 5120 * (
    select count(*) + coalesce(sum(u.pieces), 0) from upload as u
    where not u.doomed and (upload_sum.partition_id = '' or upload_sum.partition_id = u.partition_id)
);
