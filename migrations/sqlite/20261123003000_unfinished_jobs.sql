-- The jobs that have not ended are few beside all others. A flush changes neither column, so that it need not touch the index.
create index job_unfinished on job (incarnation) where finish_time is null;
