"""Mixed traffic against one server for any length of time: does it get slower, larger or worse?"""
