"""`jobscribe trace`: the timeline of a job, op or request, as text, bars or a Perfetto trace."""
