"""The program of a warm worker. Its modules ship with each worker and import the standard library,
`runner` and each other alone; nothing here runs in the client besides the format of the files.
"""
