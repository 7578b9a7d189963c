"""Mixed traffic against one server for as long as one likes: does it get slower, larger or worse with time?"""
