-- The results of parts of tasks, which a task that runs again passes over. The sweeper deletes them, some at a time, when the job
-- cannot be taken up again, so nothing refers to the job.
create table memo (
    incarnation bigint not null,
    path        text   collate "C" not null, -- of the task; empty: the job's own
    name        text   collate "C" not null,
    result      text   not null,             -- JSON
    primary key (incarnation, path, name)
);

-- The sums of each job with memos.
create table memo_sum (
    incarnation bigint primary key,
    memos       bigint not null,
    bytes       bigint not null
);
