"""The driver `sbatch`: agents on login nodes of Slurm clusters, as the users themselves. Their runs
are jobs of Slurm's (agent/batch).
"""
