"""How it is checked: Hypothesis strategies for worlds, one module a kind of property, installed as
``blocklaws.properties``.

There is no code here: pytest imports this folder under its own name when a checkout is tested with ``pytest
properties``.
"""
