"""What Slurm is asked, what its texts mean, and the scripts it is given. Pure: nothing here runs
anything (that is `agent/batch`).
"""
