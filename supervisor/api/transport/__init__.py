"""HTTP for all handlers: authentication, bodies, limits of responses, error responses."""
