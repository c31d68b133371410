"""Records and texts for people that are derived from events: the record of a job, the history of a
job, resource usage.
"""
