"""What Prometheus and people on duty are told of a supervisor: counters, readings, and whether all
is well.

`instruments` has what is counted, `happened` counts what the log says, `readings` looks at what
there is, `aside` at what may take its time, `health` judges, and `monitoring` puts them together.
The library prometheus-client is used here and nowhere else.
"""
