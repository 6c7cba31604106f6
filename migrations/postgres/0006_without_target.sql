-- Whether the request named no target pipe: such a job completes only by workers without output, and says so.
alter table job add column without_target boolean not null default false;
