"""`jobscribe job logs`: the output of a job, of any of its attempts."""
