"""`jobscribe doctor`: checks of machine, user and installation. A child process reads the facts;
pure functions judge them.
"""
