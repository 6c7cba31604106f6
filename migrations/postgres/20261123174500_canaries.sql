-- The canaries of a condition that have not ended: few, and read whenever the condition is due.
create index blocked_task_canary on blocked_task (condition_key) where state = 'canary';
