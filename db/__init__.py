"""The event store: events, the folds over them, the SQLite file, and records derived from the log.

No scheduling decision and no user interface lives here.
"""
