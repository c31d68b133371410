"""`jobscribe profile`: profiles of jobs, and their graphs."""
