"""The router's cost a turn and a token, beside other routers in the same alternated run.

Engines and clients are small Go programs, so that the router is what is measured; CPU time is that of its process tree.
"""
