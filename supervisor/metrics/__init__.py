"""Prometheus metrics and the health report of a supervisor.

`instruments` defines counters and histograms, `event_counters` counts events of the log,
`collector` reads current values, `background_sampler` runs slow measurements in threads, `health`
evaluates them, and `exporter` combines everything. The library prometheus-client is used only here.
"""
