"""One file per thing bigiron manages."""
