"""The client of the command line under the name it had; `torchloom.client` is where it lives."""

from torchloom.client import Client as Api
from torchloom.client import Endpoint, NotAnswering, NothingHere, Unavailable

__all__ = ["Api", "Endpoint", "NotAnswering", "NothingHere", "Unavailable"]
