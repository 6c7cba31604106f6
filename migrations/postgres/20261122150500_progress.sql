-- JSON: what is known about the items of a job, and when they ended. Null for a job that no report has been counted of since.
alter table job add column progress text;
