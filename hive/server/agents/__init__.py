"""Who the requests belong to: agents, their sessions, and what each has cost."""
