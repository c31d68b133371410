"""Who sends a request and what the sender may do: principals, API tokens, roles, and the audit
trail.
"""
