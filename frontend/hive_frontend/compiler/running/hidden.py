"""Names that the compiler adds to a function. `support` defines the functions among them."""

from __future__ import annotations

HIDDEN = "_hive_"
"""Prefix of all these names."""

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
SAVED = f"{HIDDEN}saved"
RERAISE = f"{HIDDEN}reraise"
JOIN_CONTEXTS = f"{HIDDEN}join_contexts"
RESTORE = f"{HIDDEN}restore"
ENTER = f"{HIDDEN}enter"
EXIT = f"{HIDDEN}exit"
HOLD = f"{HIDDEN}hold"
EXC_INFO = f"{HIDDEN}exc_info"

# Classes and other constants that emitted code uses.
NO_WAIT = f"{HIDDEN}no_wait"
UNBOUND = f"{HIDDEN}unbound"
THROWN = f"{HIDDEN}thrown"
RETURNED = f"{HIDDEN}returned"

# Variables of emitted functions that states do not carry.
REPLY = f"{HIDDEN}reply"
HELD = f"{HIDDEN}held"
LEFT = f"{HIDDEN}left"
ONCE = f"{HIDDEN}once"
CELL = f"{HIDDEN}cell_"
"""Prefix of the parameters that hold the cells of variables."""
