"""Clusters with Slurm: validation of batch requests, inventory of partitions, sign-in of users."""
