"""Parts shared by all routes: request context, checks, schemas, error responses, quotas, and the
client of the supervisor.
"""
