"""The life of an execution as a state machine: phases, stop, end, tokens, reports. Pure, and
standard library only, because keepers use it. No I/O and no clock: times are arguments.
"""
