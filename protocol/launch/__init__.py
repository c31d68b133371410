"""The shell script and the environment variables of one task. Pure text; agents and drivers write
the files and start the processes.
"""
