"""Code of the server processes only: settings with their origins, site files, log sink, systemd
notifications, and tickets for event streams.
"""
