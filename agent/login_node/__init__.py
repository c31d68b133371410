"""Commands that the driver `sbatch` runs on a login node, as the user. Standard library only."""
