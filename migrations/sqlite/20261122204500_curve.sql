-- How many items of a job had ended, at up to 240 moments: `time,done,failed;` for each. Flushes append to it, at a bounded rate.
create table curve (
    incarnation integer primary key references job on delete cascade,
    points      text    not null
);
