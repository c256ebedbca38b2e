"""Blocks composed of a framework's own layers, for frameworks that publish attention and norms but no decoder block.

A mapping file in ``backends/mappings`` builds and fills one. Must hold: what a framework has a layer for is computed by
that layer; the rest is two additions. A module here is imported only when a block of it is built.
"""
