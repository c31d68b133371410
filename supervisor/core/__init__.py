"""The decisions. Pure: data in, events and effects out; no I/O, no clock, no randomness, no
waiting.

Read `world` (what is known), `inputs` and `effects` (what comes in and goes out), then `decide`
(who answers what).
"""
