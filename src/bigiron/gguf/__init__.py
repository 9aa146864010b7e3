"""GGUF: read headers, judge shard sets, split files. Runs on hosts, standard library only (except ``remote``)."""
