"""Classification of exits: causes, exit table, kill attribution and error lines in output. Pure;
agents report facts and never import this package.
"""
