"""Shared parts of the stores in SQLite and PostgreSQL: statements, reads, the writer thread, derived
tables, and the verification of the end of the log.
"""
