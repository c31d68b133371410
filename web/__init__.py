"""The front end: Flask blueprint, pages, static files."""
