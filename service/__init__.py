"""Code of the server processes only: settings with their origins, site files, log sink and systemd
notifications.
"""
