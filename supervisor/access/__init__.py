"""Authentication and authorization of requests: principals, API tokens, roles, and the audit
trail.
"""
