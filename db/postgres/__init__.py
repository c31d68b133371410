"""The event store in a PostgreSQL schema: connection, lease, opening checks, one writer thread and
reads. Imported only where `store.url` is set, because it needs psycopg.
"""
