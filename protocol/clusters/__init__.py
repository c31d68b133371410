"""Configuration of Slurm clusters and of the Docker pool, and what runs request from Slurm. Shapes
and defaults only; `service/site` reads the files.
"""
