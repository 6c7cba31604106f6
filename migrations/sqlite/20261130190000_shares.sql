-- Jobs share pipes: how much of them each gets, with whom, and which messages wait for room.

alter table job add column share integer not null default 100; -- the weight beside the jobs of its partition
-- The jobs that share a pipe of items.
create index job_by_items_pipe on job (items_pipe) where finish_time is null;

-- The partition of a message that is held until there is room in its pipe; null: it is not. Those
-- of a partition go in the order of their turns.
alter table outbox add column held_for text;
alter table outbox add column turn integer;
drop index outbox_by_time;
create index outbox_by_time on outbox (due_time, id) where held_for is null and not suspended and not paused;
create index outbox_held on outbox (pipe, held_for, turn, id) where held_for is not null and not suspended and not paused;
