"""What the stores in SQLite and PostgreSQL share: statements, reads, the writer thread, derived tables
and the verification of the end of the log.
"""
