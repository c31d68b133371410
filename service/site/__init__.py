"""Files that a site provides (pool, clusters, exit table, notification targets), and the checks
before a start.
"""
