"""Why a run is where it is: one object for the command line, pages, JSON and status replies. Pure.

`answer` puts it together and says in which order; `waiting`, `running` and `ended` say what is so
of each; `batch` and `containers` have the words of clusters and of containers. Which cause an end
has, and how sure that is, is found in `protocol.refining`.
"""
