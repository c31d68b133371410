"""Who is told when runs change: webhooks and commands, fed from the log of events and from nothing
else.
"""
