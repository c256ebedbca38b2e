"""Other projects' layers as backends, each driven by a small YAML file and no Python.

`load_mapping` reads a file; docs/writing-a-mapping.md says what may stand in it. The rooms: `reader` and `schema` (the
file), `expressions` and `values` (what is built and passed), `operations`, `parameters` and `rotary` (weights),
`masks`, `stages` and `origins` (what is shown, and where it comes from), `block` and `backend` (the adapter contract),
`driver` and one ``*_driver`` a framework.
"""

from __future__ import annotations

from pathlib import Path

from blocklaws.backends.mapped.backend import MappedBackend
from blocklaws.backends.mapped.schema import read_mappings

__all__ = ["MappedBackend", "load_mapping"]


def load_mapping(path: Path | str) -> list[MappedBackend]:
    """Return the backends of a mapping file: one, or one for each variant. Imports no framework and no layer.

    Raises:
        BackendError: the file says something that cannot be meant; the message begins with ``file:line:column``.
    """
    return [MappedBackend(mapping) for mapping in read_mappings(Path(path))]
