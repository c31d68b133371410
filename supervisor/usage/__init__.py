"""Resource usage of tasks: samples from agents, time series, and totals."""
