"""Status answers: why a run waits, how many runs are ahead, and the state in a batch scheduler.
Pure.
"""
