"""`jobscribe profile`: profiles of jobs."""
