"""Commands on a whole log in PostgreSQL: hold it as a supervisor would, read it, copy it."""
