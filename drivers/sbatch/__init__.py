"""The driver `sbatch`: agents on login nodes of Slurm clusters, as the users themselves. Their runs
are Slurm jobs (agent/batch).
"""
