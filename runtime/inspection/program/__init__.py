"""The program that runs in executions. It gets its modules in its arguments, so that images and nodes
need no jobscribe. Python 3.8 or later, standard library only.
"""
