"""Changes of a log in PostgreSQL: copies of it that other commands change, and its compaction while it
is in use.
"""
