"""The names that the compiler brings into a function; `support` has the functions among them."""

from __future__ import annotations

HIDDEN = "_hive_"
"""Prefix of them all."""

# Functions that emitted code calls.
SUSPEND = f"{HIDDEN}suspend"
RETURN = f"{HIDDEN}return"
YIELD = f"{HIDDEN}yield"
CALLEE = f"{HIDDEN}callee"
ITER = f"{HIDDEN}iter"
BIND = f"{HIDDEN}bind"
BOUND = f"{HIDDEN}bound"
LOCALS = f"{HIDDEN}locals"
TYPE = f"{HIDDEN}type"
HANDLED = f"{HIDDEN}handled"
AT_REST = f"{HIDDEN}at_rest"
RAISE_AGAIN = f"{HIDDEN}raise_again"
JOIN_CONTEXTS = f"{HIDDEN}join_contexts"
RESTORE = f"{HIDDEN}restore"
ENTER = f"{HIDDEN}enter"
EXIT = f"{HIDDEN}exit"
HOLD = f"{HIDDEN}hold"
EXC_INFO = f"{HIDDEN}exc_info"

# Classes and other constants that it refers to.
ONWARD = f"{HIDDEN}onward"
UNBOUND = f"{HIDDEN}unbound"
THROWN = f"{HIDDEN}thrown"
RETURNED = f"{HIDDEN}returned"

# Variables of the emitted functions that no state carries.
REPLY = f"{HIDDEN}reply"
HELD = f"{HIDDEN}held"
LEFT = f"{HIDDEN}left"
ONCE = f"{HIDDEN}once"
CELL = f"{HIDDEN}cell_"
"""Prefix of the parameters that the cells of variables are in."""
