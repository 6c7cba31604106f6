-- How many shards of a tracking pipe jobs have been spread over, at the most. Tracking workers read so many, because jobs of earlier
-- settings may go on, or be taken up again, at any time.
create table tracking_shards (
    pipe   text    not null primary key,
    shards integer not null
);
