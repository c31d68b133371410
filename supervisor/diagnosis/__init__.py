"""Build the answer to `job why`, for the command line, pages, JSON and status replies. Pure.

`explanation` builds the answer; `pending_runs`, `running_runs` and `ended_runs` fill it by state;
`batch_jobs` and `containers` add facts about Slurm and Docker. The cause of an exit and its
confidence come from `jobscribe.diagnosis`.
"""
