"""The decisions of the supervisor. Pure: data in, events and effects out; no I/O, no clock, no
randomness, no waiting.

Read `state.world` (what is known), `interface.inputs` and `interface.effects` (what comes in and
goes out), then `decide` (which module handles which input).
"""
