"""The backend of one mapping: what it supports, and how a block of it is built.

Must hold: loading and `supports` import nothing; `build` imports the framework and the layer. A layer that cannot be
built, or that does not fit its mapping, is a `BackendError` with the place in the file.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping as Named
from typing import Any

import ml_dtypes
import numpy as np

from blocklaws.backends.mapped.block import MappedBlock
from blocklaws.backends.mapped.driver import Driver, load_driver
from blocklaws.backends.mapped.origins import stages_at
from blocklaws.backends.mapped.rotary import feature_order
from blocklaws.backends.mapped.schema import Mapping, words_of
from blocklaws.backends.mapped.stages import check_modules
from blocklaws.backends.mapped.values import Scope
from blocklaws.config import BlockConfig
from blocklaws.errors import BackendError

__all__ = ["MappedBackend"]


class MappedBackend:
    """A layer of another project, driven by a mapping file.

    Attributes:
        name: the name in the file, with the variant in brackets.
        dtypes: the dtypes it is verified in.
        multiples: what sizes must divide by.
        deterministic: whether two equal calls give equal bits.
        device: the device that was chosen, or None for the framework's own choice.
        packages: the packages that the mapping needs, whose versions a report names.
        blocks: the further kinds of block that it is verified with unasked.
        blocks_at: where the file names each of them.
        stages_at: stage -> the places of the file that it comes from.
        claims: choice -> the words that ``supports`` has of it.
        preflight: a layer that does not fit ends the run, so that each kind of block is tried before any is judged.
        cannot: dtype, stage, capability or ``refusals`` -> the sentence that says why the layer does not have it.
    """

    preflight = True

    def __init__(self, mapping: Mapping, device: str | None = None) -> None:
        self._mapping = mapping
        self._needs_met = False
        self.device = device
        self.name = mapping.name
        self.dtypes = mapping.dtypes
        self.multiples = dict(mapping.multiples)
        self.deterministic = mapping.deterministic
        self.cannot = dict(mapping.cannot)
        self.packages = tuple(mapping.needs)
        self.blocks = tuple(mapping.blocks)
        self.blocks_at = {name: str(node.place) for name, node in mapping.blocks.items()}
        self.stages_at = stages_at(mapping)
        self.claims = {name: mapping.supports.choices[name] for name in mapping.supports.said}
        self._tried: set[tuple[str, str]] = set()

    def __repr__(self) -> str:
        return f"<mapped backend {self.name}>"

    def with_device(self, device: str) -> MappedBackend:
        """Return the same backend on a device of the framework.

        Raises:
            BackendError: there is no such device here.
        """
        self._check_needs()
        load_driver(self._mapping.framework, self.dtypes[0], device)
        return MappedBackend(self._mapping, device)

    def supports(self, config: BlockConfig) -> str | None:
        """Return None, or a sentence why the layer is not such a block."""
        return self._mapping.supports.objection(config)

    def build(self, config: BlockConfig, parameters: Named[str, Any], dtype: str) -> MappedBlock:
        """Return the layer as a block.

        Args:
            config: a config that `supports` has no objection to.
            parameters: canonical name -> array.
            dtype: one of ``dtypes``.

        Raises:
            BackendError: the layer cannot be imported or built, or does not fit the mapping.
        """
        mapping = self._mapping
        reason = self.supports(config)
        if reason is None and dtype not in self.dtypes:
            reason = self.cannot.get(dtype, f"dtype {dtype} is not among {', '.join(self.dtypes)}")
        if reason is not None:
            raise BackendError(f"{self.name}: {reason}")
        self._check_needs()
        driver = load_driver(mapping.framework, dtype, self.device)
        built = self._build_objects(driver, config, dtype)
        self._check_layer(driver, built["layer"])
        layer = driver.prepare(built["layer"])
        check_modules(mapping.stages, driver.modules(layer))
        order = feature_order(config, mapping.rotary)
        layout = mapping.parameters.lay_out(config, parameters, driver.shapes(layer), order)
        layer = driver.assign(layer, layout.arrays)
        numpy_dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        block = MappedBlock(mapping, driver, layer, built, layout, order, config, numpy_dtype)
        # A part or a stage that is not there is not there in any world, so it is refused before anything is judged.
        if (config.block, dtype) not in self._tried:
            batch, step = self.multiples.get("B", 1), self.multiples.get("T", 1)
            tokens = step * max(1, 2 // step)
            block.try_out(batch, tokens + step * (tokens == batch), step)
            self._tried.add((config.block, dtype))
        return block

    def _check_layer(self, driver: Driver, layer: Any) -> None:
        """Refuse a layer that the driver cannot drive: a class itself, or an object of another kind."""
        if isinstance(layer, driver.layer_type):
            return
        wanted = f"a {driver.layer_type.__name__} of {driver.layer_type.__module__.partition('.')[0]}"
        found = (
            f"the class {layer.__name__} itself; build one of it with 'call'"
            if isinstance(layer, type)
            else f"a {type(layer).__name__}"
        )
        self._mapping.build["layer"].node.refuse(f"build: layer: expected {wanted}, found {found}")

    def _build_objects(self, driver: Driver, config: BlockConfig, dtype: str) -> dict[str, Any]:
        words = {**words_of(config), "dtype": driver.dtype, "dtype_name": dtype}
        scope = Scope(words, self._mapping.build, driver.array)
        with driver.building():
            return {name: scope.look_up(name) for name in self._mapping.build}

    def _check_needs(self) -> None:
        # The version of a distribution is read from its files: once, or it is a quarter of the time of a build.
        if self._needs_met:
            return
        for distribution, (least, node) in self._mapping.needs.items():
            wanted = f"{distribution}>={least}" if least else distribution
            try:
                version = importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                node.refuse(f"{self.name} needs {wanted}, which is not installed; pip install '{wanted}'")
            if least and _numbers(version) < _numbers(least):
                node.refuse(f"{self.name} needs {wanted}, but {version} is installed; pip install '{wanted}'")
        self._needs_met = True


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]
