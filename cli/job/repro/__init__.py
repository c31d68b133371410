"""`jobscribe job repro`: a folder that runs one task of a job again, by hand or under a debugger."""
