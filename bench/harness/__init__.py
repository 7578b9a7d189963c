"""What all workloads share: command line and report, tables, plots, statistics, clients, servers and their memory."""
