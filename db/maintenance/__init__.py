"""Offline maintenance of a store: check, backup, restore, repair, rebuild and compaction. The
running supervisor does not write through this package.
"""
