"""Hive: agents as plain coroutines, compiled to flow graphs, searched by supervisors.

``from hive import agent, gen, run`` is all a program needs.  Importing this package pulls in the frontend
only: no torch, no SGLang.
"""
