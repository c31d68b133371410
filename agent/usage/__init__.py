"""Resource usage of live executions: CPU, memory, disk traffic and GPUs, sampled periodically."""
