"""Log: records, their text and JSON forms, and their destinations (streams, rotating files,
journald).
"""
