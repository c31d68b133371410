"""The supervisor's own HTTP interface, for front ends and the command line: JSON in, JSON out, one
secret in a header.

`handler` is what all answers have in common, `routes` the list of what there is; the others are
handlers by topic. They parse, ask desk or engine, and write the answer; they decide nothing.
"""
