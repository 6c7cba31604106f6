-- The results of parts of tasks, which a task that runs again passes over. The sweeper deletes them, some at a time, when the job
-- cannot be taken up again, so nothing refers to the job.
create table memo (
    incarnation integer not null,
    path        text    not null, -- of the task; empty: the job's own
    name        text    not null,
    result      text    not null, -- JSON
    primary key (incarnation, path, name)
);

-- The sums of each job with memos.
create table memo_sum (
    incarnation integer primary key,
    memos       integer not null,
    bytes       integer not null
);
