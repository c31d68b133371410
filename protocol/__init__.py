"""The contract between all processes: ids, status, messages, codec, exit information, errors and
redaction rules.

Everything here is pure: no I/O, no clock, no randomness. Nothing here may import from another
folder.
"""
