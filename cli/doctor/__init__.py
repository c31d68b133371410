"""What `jobscribe doctor` looks at: facts are read in a process of their own, and judged by pure
functions in ours.
"""
