"""Hive against its peers, same work, same run, interleaved: Game of 24 under three searches, and RTL repair.

``python -m bench.peers --help`` lists the options.  How the parts divide the work:

- :mod:`~bench.peers.arms`: which program asks which server, and in which workloads;
- :mod:`~bench.peers.by_hand`, :mod:`~bench.peers.on_langgraph`: the game written without Hive's frontend;
- :mod:`~bench.peers.sglang_client`, :mod:`~bench.peers.steps`: how those ask, and what every request took;
- :mod:`~bench.peers.workers`: an arm at work; :mod:`~bench.peers.turns`: its turn with some tasks, and the meters;
- :mod:`~bench.peers.session`: blocks of tasks, all arms in turn; :mod:`~bench.peers.servers`: starting the servers;
- :mod:`~bench.peers.counters`, :mod:`~bench.harness.memory`: what servers computed and hold;
- :mod:`~bench.peers.analysis`, :mod:`~bench.peers.report`, :mod:`~bench.peers.plots`: figures, JSON, tables, picture.
"""
