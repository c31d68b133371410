"""What both ends agree on: ids, status, messages, codec, exit information, errors, redaction rules.

Everything here is pure: no I/O, no clock, no randomness. Nothing here may import from another
folder.
"""
