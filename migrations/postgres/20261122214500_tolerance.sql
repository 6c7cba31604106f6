-- Jobs that tolerate failed items. Their column on_failure is 'stop', as which earlier versions treat them.
alter table job add column tolerance text; -- JSON; null = on_failure says all
alter table job add column failed_splits bigint not null default 0; -- how many of failed_tasks are no items
