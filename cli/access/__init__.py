"""`jobscribe auth` and `jobscribe audit`: API tokens, and requests of users for other users."""
