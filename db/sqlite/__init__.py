"""The event store in a SQLite file: schema, opening checks, one writer thread, a reader and the
head file. No maintenance commands.
"""
