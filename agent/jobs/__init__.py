"""Start of jobs: the start order to the keeper, and the job command that runs an app's code."""
