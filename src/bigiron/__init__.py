"""bigiron turns workstations into verified llama.cpp hosts for models too big for one GPU."""

__version__ = "0.1.0"
