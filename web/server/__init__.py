"""The processes that serve the front end: the Flask application, its WSGI server, the proxy of
`jobscribe up`, and its development login.
"""
