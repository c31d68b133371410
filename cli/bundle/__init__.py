"""`jobscribe bundle`: an archive of one job's data from the supervisor and from readable files,
with secrets masked.
"""
