"""Pure descriptions of containers: names, labels, creation requests, exit status. Also the table of
unix users, the only module here with I/O.
"""
