"""What commands do with a log in PostgreSQL: hold it as a supervisor would, read it as a whole, copy it."""
