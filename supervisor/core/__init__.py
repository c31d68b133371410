"""The decisions of the supervisor. Pure: data in, events and effects out; no I/O, no clock, no
randomness, no waiting.

Read in this order: `state.world` (the state), `interface.inputs` and `interface.effects`, then
`decide` (the handler of each input).
"""
