"""What every process needs from its machine, agents included: clock, log lines, processes. No
pykern.
"""
