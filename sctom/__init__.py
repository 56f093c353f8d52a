"""sctom: post-training language models with objectives that can be read and checked by hand."""

__version__ = "0.1.0"
