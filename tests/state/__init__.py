"""The checks: is the host what the plan says? Started by ``./inv verify``; see docs/architecture.md."""
