"""The contract of the event store and the parts that all stores share: checksums, group commit,
indexes. No SQLite.
"""
