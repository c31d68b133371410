"""`trace`: find the job or agent of any id, and build its timeline from events and log files.

`id_lookup` finds the job or agent, `timeline` and `phases` read its events, `clock_offsets` compares
clocks, `log_search` reads log files, and `report` builds the answer.
"""
