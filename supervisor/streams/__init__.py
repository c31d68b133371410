"""Server-sent event streams: live updates of jobs, and output of one job."""
