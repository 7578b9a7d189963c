"""The engine-free core of the server: what is kept, what is evicted, which requests are let in.  NumPy and torch
only.
"""
